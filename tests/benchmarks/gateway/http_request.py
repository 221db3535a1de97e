"""Requests as bytes, made once and sent many times. Pure."""

import json
from dataclasses import dataclass

MODEL = "tiny"  # of the engines in place of a model; a token is a letter
QUESTION = "What is the capital of France?"


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Without /v1."""
        return f"http://{self.host}:{self.port}"


def chat(
    key: str,
    *,
    num_tokens: int,
    stream: bool = False,
    offline: bool = False,
    model: str = MODEL,
    question: str = QUESTION,
) -> bytes:
    """A chat completion of one short message that asks for at most so many tokens."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": num_tokens,
    }
    if stream:
        body["stream"] = True
    if offline:
        body["service_tier"] = "flex"
    return _post("/v1/chat/completions", key, json.dumps(body).encode())


def _post(path: str, key: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
