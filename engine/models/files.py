"""Reads a model directory's small JSON files. Knows nothing of what they say."""

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelError


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is none; raises ModelError for a damaged one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object")
    return value


def one_line(error: Exception) -> str:
    """Another library's error as a part of our one-line message."""
    return " ".join(str(error).split()) or type(error).__name__
