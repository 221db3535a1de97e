"""Our reader of GGUF files beside that of the package gguf: the same metadata, the same numbers, sooner."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.models import gguf_reader
from engine.models.gguf_reader import StoredTensor, read_parts
from tests.builders.tiny_gguf import write_tiny_gguf
from tests.builders.tiny_llama import TinyShape

QUANTISED = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_1", "Q8_0", "F16", "F32")]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_a_tensor_stands_for_the_numbers_that_gguf_finds_in_it(
    kind: gguf.GGMLQuantizationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_reader, "_PIECE_BLOCKS", 7)
    original = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    stored = gguf.quantize(original, kind)
    tensor = StoredTensor(shape=original.shape, kind=kind, data=stored.view(np.uint8).reshape(-1))
    np.testing.assert_array_equal(tensor.floats(), gguf.dequantize(stored, kind), strict=True)


def test_the_parts_are_those_that_gguf_finds(tmp_path: Path) -> None:
    path, _ = write_tiny_gguf(tmp_path, TinyShape())
    ours, theirs = read_parts(path), gguf.GGUFReader(path)
    assert ours.metadata == {
        name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")
    }
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        np.testing.assert_array_equal(ours.tensors[tensor.name].floats(), tensor.data, strict=True)


def test_a_file_that_was_cut_off_anywhere_is_damaged(tmp_path: Path) -> None:
    path, _ = write_tiny_gguf(tmp_path, TinyShape())
    content, cut = path.read_bytes(), tmp_path / "cut.gguf"
    for length in [*range(1, 200), *range(200, len(content) - 64, 997)]:
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match="it ends too early"):
            read_parts(cut)


def test_a_conversion_does_not_wait_for_torch() -> None:
    code = "import sys, deploy.model_conversion; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
