"""Packed weights are made once: kept, mapped at the next start, made anew when they would be wrong."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models import precision
from engine.models.loading import load_model
from tests.builders.model_logits import chunked_logits
from tests.builders.tiny_llama import write_tiny_llama

TOKEN_IDS = [3, 17, 42, 99, 5, 60]


def logits(directory: Path, kept: Path | None, *, dtype: str = "int8") -> Tensor:
    return chunked_logits(load_model(directory, dtype=dtype, prepared_in=kept), TOKEN_IDS, chunk_size=6)


def refuse_to_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(precision, "pack", refuse)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32"])
def test_second_start_packs_nothing_and_computes_the_same(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    first = logits(directory, kept, dtype=dtype)
    refuse_to_pack(monkeypatch)
    assert torch.equal(logits(directory, kept, dtype=dtype), first)
    assert torch.equal(
        first, chunked_logits(load_model(directory, dtype=dtype, prepared_in=kept), TOKEN_IDS, chunk_size=6)
    )


def test_precisions_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    alone = {dtype: logits(directory, None, dtype=dtype) for dtype in ("int8", "bfloat16")}
    for dtype in alone:
        logits(directory, kept, dtype=dtype)
    refuse_to_pack(monkeypatch)
    for dtype, expected in alone.items():
        assert torch.equal(logits(directory, kept, dtype=dtype), expected)


def test_replaced_model_is_not_served_with_the_old_weights(tmp_path: Path) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    old = logits(directory, kept)
    write_tiny_llama(directory, seed=1)
    new = logits(directory, kept)
    assert not torch.equal(new, old)
    assert torch.equal(new, logits(directory, None))
    assert len(list(kept.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_damaged_file_is_said_and_made_anew(
    size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    expected = logits(directory, kept)
    (file,) = kept.glob("*.safetensors")
    content = file.read_bytes()
    assert len(content) > size
    file.write_bytes(content[:size])
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(directory, kept), expected)
    assert "is damaged and will be made anew" in caplog.text
    refuse_to_pack(monkeypatch)
    assert torch.equal(logits(directory, kept), expected)


def test_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, kept = write_tiny_llama(tmp_path / "tiny"), tmp_path / "kept"
    kept.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(directory, kept), logits(directory, None))
    assert "cannot be kept for the next start" in caplog.text
