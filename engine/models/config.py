"""What a model's config.json says, as a value that our code can serve. Transformers only parses it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from engine.errors import ModelError
from engine.models.files import one_line, read_json
from engine.models.rotary import RopeParameters, parse_rope


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama-family decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_epsilon: float
    rope: RopeParameters
    is_tied: bool
    """Whether the output projection is the embedding itself."""

    has_attention_bias: bool
    has_mlp_bias: bool


def read_config(directory: Path) -> ModelConfig:
    """The configuration of the model in `directory`; raises ModelError where it is not one that we serve."""
    raw = read_json(directory / "config.json")
    if raw is None:
        raise ModelError(f"{directory} is no model directory: it has no config.json")
    architecture = raw.get("model_type")
    if architecture != "llama":
        raise ModelError(f"models of the kind {architecture!r} are not supported, only 'llama' ones are")
    if "quantization_config" in raw:
        raise ModelError(
            f"{directory} holds quantised weights; only float32, bfloat16 and float16 are supported"
        )
    try:
        parsed = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise ModelError(f"{directory}/config.json cannot be read: {one_line(error)}") from error
    return _checked(parsed, directory)


def _checked(parsed: Any, directory: Path) -> ModelConfig:
    if parsed.hidden_act != "silu":
        raise ModelError(f"the activation {parsed.hidden_act!r} is not supported, only 'silu' is")
    if parsed.num_attention_heads % parsed.num_key_value_heads:
        raise ModelError(
            f"{directory}/config.json: num_attention_heads ({parsed.num_attention_heads}) must be a multiple "
            f"of num_key_value_heads ({parsed.num_key_value_heads})"
        )
    return ModelConfig(
        vocab_size=parsed.vocab_size,
        hidden_size=parsed.hidden_size,
        intermediate_size=parsed.intermediate_size,
        num_layers=parsed.num_hidden_layers,
        num_heads=parsed.num_attention_heads,
        num_kv_heads=parsed.num_key_value_heads,
        head_dim=parsed.head_dim,
        max_position_embeddings=parsed.max_position_embeddings,
        rms_norm_epsilon=parsed.rms_norm_eps,
        rope=parse_rope(parsed.rope_parameters),
        is_tied=parsed.tie_word_embeddings,
        has_attention_bias=parsed.attention_bias,
        has_mlp_bias=parsed.mlp_bias,
    )
