"""What a customer does with batches, over HTTP alone: files up, an order, how it stands, files down."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

ENDED: Final = ("completed", "failed", "expired", "cancelled")
POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class Files:
    """What a batch left: its lines, as values."""

    output: Sequence[Mapping[str, Any]]
    errors: Sequence[Mapping[str, Any]]


class BatchClient:
    """One customer of a server. A server that is away for a while is asked again."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def upload(self, content: bytes) -> str:
        """The file's id."""
        answer = self._asked(
            lambda: self._http.post(
                "/v1/files", data={"purpose": "batch"}, files={"file": ("input.jsonl", content)}
            )
        )
        return str(answer["id"])

    def order(self, file_id: str, *, window: str = "24h") -> str:
        """The batch's id."""
        wanted = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": window,
        }
        return str(self._asked(lambda: self._http.post("/v1/batches", json=wanted))["id"])

    def state(self, batch_id: str) -> Mapping[str, Any]:
        """The batch as the wire shows it."""
        return self._asked(lambda: self._http.get(f"/v1/batches/{batch_id}"))

    def watched(self, batch_id: str) -> Iterator[Mapping[str, Any]]:
        """Its states, until it has ended."""
        while True:
            state = self.state(batch_id)
            yield state
            if state["status"] in ENDED:
                return
            time.sleep(POLL_SECONDS)

    def files(self, batch: Mapping[str, Any]) -> Files:
        """What it left."""
        return Files(output=self._lines(batch["output_file_id"]), errors=self._lines(batch["error_file_id"]))

    def _lines(self, file_id: str | None) -> list[Mapping[str, Any]]:
        if file_id is None:
            return []
        content = self._http.get(f"/v1/files/{file_id}/content")
        content.raise_for_status()
        return [json.loads(line) for line in content.text.splitlines()]

    def _asked(self, ask: Callable[[], httpx.Response]) -> Mapping[str, Any]:
        while True:
            try:
                response = ask()
            except httpx.TransportError:
                time.sleep(POLL_SECONDS)
                continue
            if response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                break
            time.sleep(POLL_SECONDS)
        if response.is_error:
            raise RuntimeError(f"{response.request.url}: {response.text}")
        answer: Mapping[str, Any] = response.json()
        return answer


@contextmanager
def batch_client(url: str, key: str) -> Iterator[BatchClient]:
    """A customer with a key."""
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120, trust_env=False
    ) as http:
        yield BatchClient(http)


def chat_lines(num: int, *, model: str, num_tokens: int, question: Callable[[int], str]) -> bytes:
    """An input file: line n asks `question(n)` and has the custom id `line-<n>`."""
    return b"".join(_line(n, model, num_tokens, question(n)) for n in range(1, num + 1))


def _line(number: int, model: str, num_tokens: int, question: str) -> bytes:
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": num_tokens,
    }
    line = {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": asked,
    }
    return json.dumps(line).encode() + b"\n"
