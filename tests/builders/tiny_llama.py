"""A Llama of a few thousand random weights as a Hugging Face directory: a real model for tests in a hurry.

It knows the file formats only; it needs neither the network nor transformers. The tokenizer is byte-level, so
every text has ids and every id but the three special ones is one byte.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
EOS_TOKEN_ID = 2
NUM_SPECIAL_TOKENS = 3
VOCAB_SIZE = NUM_SPECIAL_TOKENS + 256

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """The architecture of a tiny model; the defaults make about 30,000 weights."""

    num_layers: int = 2
    hidden_size: int = 32
    intermediate_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    vocab_size: int = VOCAB_SIZE
    max_position_embeddings: int = 512
    tied: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: dict[str, Any] | None = None
    """`rope_parameters` of config.json; None is the default rotation with theta 10000."""


def write_tiny_llama(
    directory: Path, shape: TinyShape | None = None, *, seed: int = 0, num_shards: int = 1
) -> Path:
    """Writes config.json, weights, tokenizer and chat template into `directory`; returns it.

    Equal arguments give equal weights. With `num_shards` above 1 the weights are split over that many files.
    """
    shape = shape or TinyShape()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(shape))
    _write_json(directory / "generation_config.json", {"eos_token_id": [EOS_TOKEN_ID, 0]})
    _write_weights(directory, _random_weights(shape, seed), num_shards)
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    return directory


def byte_level_tokenizer() -> Tokenizer:
    """Ids 0..2 are the special tokens, ids 3..258 the bytes in the order of the byte-level alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([END_OF_TEXT, IM_START, IM_END, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in (END_OF_TEXT, IM_START, IM_END)]
    )
    return tokenizer


def _config(shape: TinyShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "attention_bias": shape.attention_bias,
        "mlp_bias": shape.mlp_bias,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": shape.rope or {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
        "dtype": "float32",
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": IM_START,
        "eos_token": IM_END,
        "unk_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
    }


def _random_weights(shape: TinyShape, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.randn(size, generator=generator) * (0.3 if len(size) > 1 else 0.1)
        for name, size in _weight_sizes(shape).items()
    }
    return {name: weight + 1 if name.endswith("norm.weight") else weight for name, weight in weights.items()}


def _weight_sizes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, shape.hidden_size),
        "model.norm.weight": (shape.hidden_size,),
    }
    if not shape.tied:
        sizes["lm_head.weight"] = (shape.vocab_size, shape.hidden_size)
    for index in range(shape.num_layers):
        sizes |= {f"model.layers.{index}.{name}": size for name, size in _layer_sizes(shape).items()}
    return sizes


def _layer_sizes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    attention = {
        "q_proj": (query_size, hidden),
        "k_proj": (kv_size, hidden),
        "v_proj": (kv_size, hidden),
        "o_proj": (hidden, query_size),
    }
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    sizes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for part, linears, has_bias in (
        ("self_attn", attention, shape.attention_bias),
        ("mlp", mlp, shape.mlp_bias),
    ):
        for name, size in linears.items():
            sizes[f"{part}.{name}.weight"] = size
            if has_bias:
                sizes[f"{part}.{name}.bias"] = size[:1]
    return sizes


def _write_weights(directory: Path, weights: dict[str, torch.Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(weights, directory / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        names = sorted(weights)[shard::num_shards]
        save_file({name: weights[name] for name in names}, directory / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    _write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
