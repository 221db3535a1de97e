"""A tiny Llama as a GGUF file, as its usual converter writes it: rows of query and key heads interleaved."""

from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

from tests.builders.tiny_llama import (
    CHAT_TEMPLATE,
    NUM_SPECIAL_TOKENS,
    TinyShape,
    byte_level_tokenizer,
    write_tiny_llama,
)

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_tiny_gguf(
    directory: Path,
    shape: TinyShape,
    *,
    architecture: str = "llama",
    splitting_rule: str = "smollm",
    rope_divisors: np.ndarray | None = None,
) -> tuple[Path, Path]:
    """Writes one model twice into `directory`; returns the GGUF file and the Hugging Face directory."""
    original = write_tiny_llama(directory / "original", shape)
    path = directory / "tiny.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    _add_shape(writer, shape)
    _add_tokenizer(writer, splitting_rule)
    for name, tensor in load_file(original / "model.safetensors").items():
        writer.add_tensor(_stored_name(name), _rotating_neighbours(name, tensor.numpy(), shape))
    if rope_divisors is not None:
        writer.add_tensor("rope_freqs.weight", rope_divisors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, original


def _add_shape(writer: gguf.GGUFWriter, shape: TinyShape) -> None:
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base((shape.rope or {}).get("rope_theta", 10000.0))


def _add_tokenizer(writer: gguf.GGUFWriter, splitting_rule: str) -> None:
    vocabulary = byte_level_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting_rule)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if index < NUM_SPECIAL_TOKENS else 1 for index in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def _stored_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_OUTER[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_PARTS[part]}.{kind}"


def _rotating_neighbours(name: str, weight: np.ndarray, shape: TinyShape) -> np.ndarray:
    num_heads = {"q_proj": shape.num_heads, "k_proj": shape.num_kv_heads}.get(name.split(".")[-2])
    if num_heads is None:
        return weight
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
