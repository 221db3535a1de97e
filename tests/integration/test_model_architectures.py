"""Small random models of every supported kind give transformers' logits; all others are refused."""

import json
from pathlib import Path

import pytest
import torch

from engine.errors import ModelError
from engine.models.loading import load_model
from tests.builders.model_logits import chunked_logits
from tests.builders.tiny_llama import TinyShape, write_tiny_llama
from tests.builders.transformers_reference import TransformersReference

TOKEN_IDS = [1, *range(40, 85), 2, 7]

SHAPES = {
    "tied": TinyShape(),
    "untied": TinyShape(tied=False),
    "biases": TinyShape(attention_bias=True, mlp_bias=True),
    "one key head": TinyShape(num_heads=5, num_kv_heads=1, hidden_size=40),
    "head size of its own": TinyShape(head_dim=20),
    "linear rope": TinyShape(rope={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}),
    "llama3 rope": TinyShape(
        rope={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        head_dim=32,
    ),
}


def changed_config(directory: Path, **changes: object) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_logits_equal_transformers(shape: TinyShape, tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, shape)
    ours = chunked_logits(load_model(directory, dtype="float32"), TOKEN_IDS, chunk_size=9)
    torch.testing.assert_close(ours, TransformersReference(directory).logits(TOKEN_IDS), atol=1e-4, rtol=1e-4)


def test_shards_hold_the_same_model_as_one_file(tmp_path: Path) -> None:
    whole = load_model(write_tiny_llama(tmp_path / "whole"))
    sharded = load_model(write_tiny_llama(tmp_path / "sharded", num_shards=3))
    logits = [chunked_logits(model, TOKEN_IDS, chunk_size=9) for model in (whole, sharded)]
    torch.testing.assert_close(logits[0], logits[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_fewer_bits_stay_near_float32(dtype: str, tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path)
    exact = chunked_logits(load_model(directory, dtype="float32"), TOKEN_IDS, chunk_size=9)
    rounded = chunked_logits(load_model(directory, dtype=dtype), TOKEN_IDS, chunk_size=9)
    assert (rounded - exact).abs().mean() < 0.05 * exact.std()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "'mamba'"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "'yarn'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"hidden_size": "many"}, "config.json"),
        ({"hidden_size": 33}, "not a multiple"),
        ({"num_hidden_layers": 3}, "lack model.layers.2"),
        ({"num_hidden_layers": 1}, "model.layers.1"),
        ({"intermediate_size": 60}, "has shape"),
        ({"attention_bias": True}, "q_proj.bias"),
        ({"tie_word_embeddings": False}, "lm_head.weight"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_we_cannot_compute_is_refused_in_one_line(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    directory = changed_config(write_tiny_llama(tmp_path), **changes)
    with pytest.raises(ModelError) as caught:
        load_model(directory)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_damaged_files_are_refused_in_one_line(name: str, damage: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path) / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            path.read_bytes()[: path.stat().st_size // 2] if name != "tokenizer.json" else b"\xff"
        )
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "device"), [("int3", "cpu"), ("float32", "tpu")])
def test_unknown_types_and_devices_are_refused(dtype: str, device: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        load_model(write_tiny_llama(tmp_path), dtype=dtype, device=device)
