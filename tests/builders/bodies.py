"""Bodies of inference requests."""

import json
from typing import Any


def chat_body(**changes: Any) -> dict[str, Any]:
    """The smallest chat completion for the model `tiny`; a value of None leaves the parameter out."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | changes
    return {name: value for name, value in body.items() if value is not None}


def completion_body(**changes: Any) -> dict[str, Any]:
    """The smallest completion for the model `tiny`; a value of None leaves the parameter out."""
    body = {"model": "tiny", "prompt": "Hi"} | changes
    return {name: value for name, value in body.items() if value is not None}


def encoded(body: Any) -> bytes:
    """A body as bytes."""
    return json.dumps(body).encode()
