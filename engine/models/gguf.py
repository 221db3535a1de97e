"""Reads a GGUF file of the Llama family as what a Hugging Face directory would hold. Writes nothing.

Most files need no torch, whose import would take as long as the rest of a conversion.

GGUF orders query and key rows for rotating neighbours; ours rotate halves, so the rows are put back.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.models.files import one_line
from engine.models.gguf_reader import StoredTensor, read_parts

_ROPE_FACTORS = "rope_freqs.weight"
_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    """One open file. Everything raises ModelError, in one line, for what is missing or not supported."""

    def __init__(self, path: Path) -> None:
        try:
            parts = read_parts(path)
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelError(f"{path} is no readable GGUF file: {one_line(error)}") from error
        self._path = path
        self._metadata, self._tensors = parts.metadata, parts.tensors
        architecture = self.value("general.architecture")
        if architecture != "llama" or self.optional("llama.expert_count", 0):
            raise ModelError(f"{path} holds a model of the kind {architecture!r}, not a dense 'llama'")

    def value(self, key: str) -> Any:
        """The metadata under `key`, as plain Python."""
        if key not in self._metadata:
            raise ModelError(f"{self._path} lacks {key}")
        return self._metadata[key]

    def optional(self, key: str, default: Any = None) -> Any:
        """As `value`, or `default` where the file does not say."""
        return self.value(key) if key in self._metadata else default

    @property
    def num_tensors(self) -> int:
        """How many tensors `tensors` gives."""
        return len(self._tensors) - (_ROPE_FACTORS in self._tensors)

    def config(self) -> dict[str, Any]:
        """What config.json would say."""
        num_heads = self.value("llama.attention.head_count")
        hidden_size = self.value("llama.embedding_length")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "vocab_size": self._tensor("token_embd.weight").shape[0],
            "hidden_size": hidden_size,
            "intermediate_size": self.value("llama.feed_forward_length"),
            "num_hidden_layers": self.value("llama.block_count"),
            "num_attention_heads": num_heads,
            "num_key_value_heads": self.optional("llama.attention.head_count_kv", num_heads),
            "head_dim": self.optional("llama.attention.key_length", hidden_size // num_heads),
            "max_position_embeddings": self.value("llama.context_length"),
            "rms_norm_eps": self.value("llama.attention.layer_norm_rms_epsilon"),
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensors,
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "rope_parameters": self._rope_parameters(),
            "bos_token_id": self.optional("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.value("tokenizer.ggml.eos_token_id"),
            "dtype": "float32",
        }

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every weight in float32 under its Hugging Face name, de-quantised one at a time."""
        for name, stored in self._tensors.items():
            if name != _ROPE_FACTORS:
                yield _translated(name), self._rotating_halves(name, stored.floats())

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise ModelError(f"{self._path} lacks the tensor {name}")
        return self._tensors[name]

    def _rotating_halves(self, name: str, weight: np.ndarray) -> np.ndarray:
        """Rows of each query or key head from (a0 b0 a1 b1 ...) to (a0 a1 ... b0 b1 ...)."""
        num_heads = self.value("llama.attention.head_count")
        if ".attn_k." in name:
            num_heads = self.optional("llama.attention.head_count_kv", num_heads)
        elif ".attn_q." not in name:
            return weight
        pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
        return pairs.swapaxes(1, 2).reshape(weight.shape)

    def _rope_parameters(self) -> dict[str, Any]:
        theta = float(self.optional("llama.rope.freq_base", 10000.0))
        if _ROPE_FACTORS in self._tensors:
            return self._llama3_parameters(theta)
        kind = self.optional("llama.rope.scaling.type", "none")
        if kind == "none":
            return {"rope_type": "default", "rope_theta": theta}
        if kind == "linear":
            factor = self.value("llama.rope.scaling.factor")
            return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
        raise ModelError(f"{self._path} scales positions by {kind!r}, which is not supported")

    def _llama3_parameters(self, theta: float) -> dict[str, Any]:
        """GGUF keeps only the frequencies' divisors; every Llama 3 has the same numbers beside the factor."""
        # Here and not above: it takes torch.
        import torch

        from engine.models.rotary import DefaultRope, Llama3Rope, inverse_frequencies, llama3_divisors

        divisors = torch.from_numpy(self._tensor(_ROPE_FACTORS).floats())
        rope = Llama3Rope(
            theta=theta,
            factor=float(divisors.max()),
            low_frequency_factor=1.0,
            high_frequency_factor=4.0,
            original_context_length=8192,
        )
        frequencies = inverse_frequencies(DefaultRope(theta=theta), 2 * len(divisors))
        if not torch.allclose(divisors, llama3_divisors(frequencies, rope), rtol=1e-3):
            raise ModelError(f"{self._path} scales positions in a way that is not Llama 3's")
        return {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": rope.factor,
            "low_freq_factor": rope.low_frequency_factor,
            "high_freq_factor": rope.high_frequency_factor,
            "original_max_position_embeddings": rope.original_context_length,
        }


def _translated(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match = re.fullmatch(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)", name)
    known = _OUTER_NAMES if match is None or match["layer"] is None else _LAYER_NAMES
    if match is None or match["part"] not in known:
        raise ModelError(f"the tensor {name} is none of a plain Llama's")
    prefix = "" if match["layer"] is None else f"model.layers.{match['layer']}."
    return f"{prefix}{known[match['part']]}.{match['kind']}"
