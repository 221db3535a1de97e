"""What a model's config.json says, as a value that our code can serve. Transformers only parses it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from engine.errors import ModelError
from engine.models.files import one_line, read_json
from engine.models.prepared import keep, prepared_path
from engine.models.rotary import RopeParameters, parse_rope

_NEEDED: Final[Mapping[str, type]] = {
    "hidden_act": str,
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "max_position_embeddings": int,
    "rms_norm_eps": float,
    "rope_parameters": dict,
    "tie_word_embeddings": bool,
    "attention_bias": bool,
    "mlp_bias": bool,
}
"""Of a configuration, as Transformers names and types it."""


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


def read_config(directory: Path, *, prepared_in: Path | None = None) -> ModelConfig:
    """The configuration of the model in `directory`; raises ModelError where it is not one that we serve.

    What Transformers made of it is kept in the folder `prepared_in`: importing it takes seconds.
    """
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
    if prepared_in is None:
        return _checked(_parsed(directory, raw), directory)
    return _checked(_kept(prepared_path(prepared_in, directory, ".json"), raw, directory), directory)


def _kept(path: Path, raw: dict[str, Any], directory: Path) -> dict[str, Any]:
    """What `raw` was parsed to before, or is now."""
    source = {"config": raw, "transformers": version("transformers")}
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["source"] == source:
            return dict(kept["parsed"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing, damaged or of another form: written anew
    parsed = _parsed(directory, raw)
    text = json.dumps({"source": source, "parsed": parsed})
    keep(path, lambda file: file.write_text(text, encoding="utf-8"))
    return parsed


def _parsed(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """What Transformers makes of `raw`, which is the file in `directory`."""
    if _says_all(raw):
        return {name: raw[name] for name in _NEEDED}
    # Here and not above: most starts do without, and are seconds faster for it.
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise ModelError(f"{directory}/config.json cannot be read: {one_line(error)}") from error
    return {name: getattr(config, name) for name in _NEEDED}


def _says_all(raw: dict[str, Any]) -> bool:
    """Whether nothing is left to Transformers' defaults, old names and refusals, as in what we converted."""
    if any(type(raw.get(name)) is not kind for name, kind in _NEEDED.items()):
        return False
    rope, num_heads = raw["rope_parameters"], raw["num_attention_heads"]
    is_plain = rope.keys() == {"rope_type", "rope_theta"} and rope["rope_type"] == "default"
    return is_plain and num_heads > 0 and raw["hidden_size"] % num_heads == 0


def _checked(parsed: dict[str, Any], directory: Path) -> ModelConfig:
    if parsed["hidden_act"] != "silu":
        raise ModelError(f"the activation {parsed['hidden_act']!r} is not supported, only 'silu' is")
    num_heads, num_kv_heads = parsed["num_attention_heads"], parsed["num_key_value_heads"]
    if num_heads % num_kv_heads:
        raise ModelError(
            f"{directory}/config.json: num_attention_heads ({num_heads}) must be a multiple "
            f"of num_key_value_heads ({num_kv_heads})"
        )
    return ModelConfig(
        vocab_size=parsed["vocab_size"],
        hidden_size=parsed["hidden_size"],
        intermediate_size=parsed["intermediate_size"],
        num_layers=parsed["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=parsed["head_dim"],
        max_position_embeddings=parsed["max_position_embeddings"],
        rms_norm_epsilon=parsed["rms_norm_eps"],
        rope=parse_rope(parsed["rope_parameters"]),
        is_tied=parsed["tie_word_embeddings"],
        has_attention_bias=parsed["attention_bias"],
        has_mlp_bias=parsed["mlp_bias"],
    )
