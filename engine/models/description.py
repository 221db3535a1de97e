"""What a model directory says about text: tokenizer, chat template, special tokens. Needs no torch.

The engine computes nothing with it, and passes it on to the gateways that do.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.files import read_json


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """All that is needed to turn text into the model's ids and back."""

    tokenizer_json: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]


def describe(directory: Path) -> ModelDescription:
    """Reads the description of the model in `directory`; raises ModelError without a tokenizer.json."""
    settings = read_json(directory / "tokenizer_config.json") or {}
    special = read_json(directory / "special_tokens_map.json") or {}
    return ModelDescription(
        tokenizer_json=_tokenizer_json(directory),
        chat_template=_chat_template(directory, settings),
        bos_token=_token_text(settings.get("bos_token", special.get("bos_token"))),
        eos_token=_token_text(settings.get("eos_token", special.get("eos_token"))),
        eos_token_ids=_eos_token_ids(directory),
    )


def _tokenizer_json(directory: Path) -> str:
    try:
        return (directory / "tokenizer.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{directory} has no readable tokenizer.json") from error


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several templates by name, of which one is the default
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _token_text(token: Any) -> str | None:
    """A special token is written as its text, or as an object that holds it."""
    return token.get("content") if isinstance(token, dict) else token


def _eos_token_ids(directory: Path) -> tuple[int, ...]:
    """Those of the generation settings first, and those of the configuration; each once."""
    ids: dict[int, None] = {}
    for name in ("generation_config.json", "config.json"):
        value = (read_json(directory / name) or {}).get("eos_token_id")
        ids |= dict.fromkeys(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(ids)
