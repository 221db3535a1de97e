"""Where nothing compiles C++, the references do all the work, and one warning says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.models.loading import load_model
from tests.builders.model_logits import chunked_logits
from tests.builders.tiny_llama import write_tiny_llama

TOKEN_IDS = tuple(range(1, 60))
PROGRAM = """
import json, logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from pathlib import Path
from engine.models.loading import load_model
from tests.builders.model_logits import chunked_logits
model = load_model(Path(sys.argv[1]), dtype=sys.argv[2])
logits = chunked_logits(model, range(1, 60), chunk_size=9)
print(json.dumps({"dtype": model.precision.name, "logits": logits.tolist()}))
"""


def computed_without_a_compiler(directory: Path, dtype: str, tmp_path: Path) -> tuple[dict[str, object], str]:
    environment = {**os.environ, "CXX": "/nowhere/c++", "XDG_CACHE_HOME": str(tmp_path / "empty cache")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), dtype],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("int8", 2e-2)])
def test_the_same_logits_and_one_warning(dtype: str, tolerance: float, tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "model")
    ours = chunked_logits(load_model(directory, dtype=dtype, device="cpu"), TOKEN_IDS, chunk_size=9)
    answer, errors = computed_without_a_compiler(directory, dtype, tmp_path)
    torch.testing.assert_close(torch.tensor(answer["logits"]), ours, atol=tolerance, rtol=tolerance)
    warnings = [line for line in errors.splitlines() if "native operators are off" in line]
    assert len(warnings) == 1
    assert "/nowhere/c++" in warnings[0]


def test_auto_is_float32_as_int8_gains_nothing_there(tmp_path: Path) -> None:
    answer, _ = computed_without_a_compiler(write_tiny_llama(tmp_path / "model"), "auto", tmp_path)
    assert answer["dtype"] == "float32"
