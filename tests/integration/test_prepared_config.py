"""A configuration is parsed by Transformers once at most: it takes seconds. Another one is parsed anew."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models.config import read_config
from tests.builders.tiny_llama import TinyShape, write_tiny_llama

READ_WITHOUT_TRANSFORMERS = """
import sys
from pathlib import Path
from engine.models.config import read_config
print(read_config(Path(sys.argv[1]), prepared_in=Path(sys.argv[2])))
assert "transformers" not in sys.modules
"""


def read_without_transformers(directory: Path, kept: Path) -> str:
    """What a process of its own reads; fails where that needs Transformers."""
    ended = subprocess.run(
        [sys.executable, "-c", READ_WITHOUT_TRANSFORMERS, str(directory), str(kept)],
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip()


def leave_something_to_defaults(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    del config["mlp_bias"]
    (directory / "config.json").write_text(json.dumps(config))


def test_second_start_does_not_import_transformers(tmp_path: Path) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    leave_something_to_defaults(directory)
    with pytest.raises(subprocess.CalledProcessError):
        read_without_transformers(directory, tmp_path / "not kept")
    first = read_config(directory, prepared_in=kept)
    assert read_without_transformers(directory, kept) == str(first)


def test_configuration_that_says_all_needs_no_transformers_ever(tmp_path: Path) -> None:
    directory, defaults = write_tiny_llama(tmp_path / "tiny"), write_tiny_llama(tmp_path / "defaults")
    leave_something_to_defaults(defaults)
    assert read_without_transformers(directory, tmp_path / "kept") == str(read_config(defaults))


def test_changed_configuration_is_parsed_anew(tmp_path: Path) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    read_config(directory, prepared_in=kept)
    write_tiny_llama(directory, TinyShape(num_layers=3))
    assert read_config(directory, prepared_in=kept).num_layers == 3
    assert read_config(directory, prepared_in=kept) == read_config(directory)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"source": null}'])
def test_damaged_file_is_made_anew(content: str, tmp_path: Path) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    expected = read_config(directory, prepared_in=kept)
    (file,) = kept.iterdir()
    file.write_text(content)
    assert read_config(directory, prepared_in=kept) == expected
    assert json.loads(file.read_text())["source"]["config"]["model_type"] == "llama"


def test_configuration_that_is_refused_is_refused_again(tmp_path: Path) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    for _ in range(2):
        with pytest.raises(ModelError, match="'gelu' is not supported"):
            read_config(directory, prepared_in=kept)
