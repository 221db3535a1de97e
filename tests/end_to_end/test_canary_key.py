"""A key is sent in every way that clients send keys by mistake: nothing that Sluice writes shows it."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from tests.builders.sluice_process import SluiceProcess
from tests.builders.tiny_llama import write_tiny_llama

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@dataclass(frozen=True, kw_only=True)
class Canary:
    """A key whose secret part is looked for."""

    id: str
    value: str

    @property
    def secret(self) -> str:
        return self.value.rpartition("-")[2][:43]


@pytest.fixture(scope="module")
def sluice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SluiceProcess]:
    model = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    running = SluiceProcess(tmp_path_factory.mktemp("data"), model=model)
    yield running
    running.stop()


def new_canary(sluice: SluiceProcess) -> Canary:
    value = sluice.command("keys", "create", "--tenant", "default", "--quiet").strip()
    return Canary(id=value.split("-")[2], value=value)


def send_everywhere(sluice: SluiceProcess, key: str) -> list[httpx.Response]:
    """The key in good requests and in bad ones."""
    good = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=sluice.api, timeout=30) as client:
        return [
            client.post(COMPLETIONS, json=BODY, headers=good),
            client.post(COMPLETIONS, json=BODY | {"stream": True}, headers=good),
            client.get("/v1/models", headers=good),
            client.post(COMPLETIONS, json=BODY, headers={"Authorization": f"Basic {key}"}),
            client.post(COMPLETIONS, json=BODY, headers={"Authorization": f"Bearer{key}"}),
            client.post(COMPLETIONS, json=BODY, headers={"Authorization": key}),
            client.post(COMPLETIONS, json=BODY, headers={"Authorization": f"Bearer x{key}"}),
            client.post(COMPLETIONS, json=BODY, headers={"Authorization": f"Bearer {key[:-2]}"}),
            client.post(COMPLETIONS, json=BODY, headers={"api-key": key}),
            client.post(COMPLETIONS, json=BODY, headers=good | {"x-request-id": key}),
            client.post(COMPLETIONS, json=BODY, headers=good | {"x-request-id": f"id_{key}"}),
            client.post(COMPLETIONS, json=BODY, headers=good | {"traceparent": f"00-{key}-01"}),
            client.post(COMPLETIONS, json=BODY, headers=good | {"traceparent": f"00-{TRACE}-{key}"}),
            client.post(COMPLETIONS, json=BODY | {"prompt": key}, headers=good),
            client.post(COMPLETIONS, json=BODY | {"model": key}, headers=good),
            client.post(COMPLETIONS, json=BODY | {"user": key, "logit_bias": {key: 1}}, headers=good),
            client.post(COMPLETIONS, json=BODY | {"service_tier": key}, headers=good),
            client.post(COMPLETIONS, content=key, headers=good),
            client.post(
                CHAT, json={"model": "tiny", "messages": [{"role": key, "content": key}]}, headers=good
            ),
            client.post(f"{COMPLETIONS}?api_key={key}", json=BODY),
            client.get(f"/v1/models/{key}", headers=good),
            client.get(f"/{key}"),
            client.request("PATCH", f"/v1/models/{key}", headers=good),
        ]


def send_no_http(sluice: SluiceProcess, key: str) -> None:
    """What a server may log as it came, because it is no request."""
    address = urlsplit(sluice.api)
    with socket.create_connection((address.hostname, address.port or 80), timeout=10) as connection:
        connection.sendall(f"GET /?key={key} HTTP/7.7\r\nAuthorization {key}\r\n\r\n".encode())
        connection.recv(10_000)


def shown_by(sluice: SluiceProcess, answers: list[httpx.Response]) -> dict[str, str]:
    """All that was written down and all that was answered, by where."""
    texts = {
        "output": sluice.output,
        "metrics": httpx.get(sluice.metrics).text,
        "engine metrics": httpx.get(sluice.engine.replace("ws://", "http://") + "/metrics").text,
        "keys list": sluice.command("keys", "list", "--json"),
    }
    texts |= {f"answer {number}": f"{answer.text}{answer.headers}" for number, answer in enumerate(answers)}
    return texts | tables_of(sluice) | files_of(sluice.data_dir)


def tables_of(sluice: SluiceProcess) -> dict[str, str]:
    """Every table as it would be dumped."""
    with psycopg.connect(sluice.database_url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {
            name: str(connection.execute(f'SELECT json_agg(t)::text FROM "{name}" t').fetchall())  # type: ignore[arg-type]
            for (name,) in names
        }


def files_of(directory: Path) -> dict[str, str]:
    """Logs, and the store's own files; but the one that is meant to hold a key."""
    return {
        str(path.relative_to(directory)): path.read_bytes().decode("latin-1")
        for path in directory.rglob("*")
        if path.is_file() and path.name != "first-key"
    }


def test_authorization_headers_and_keys_are_in_no_log_row_metric_or_error(sluice: SluiceProcess) -> None:
    live, revoked, rotated = (new_canary(sluice) for _ in range(3))
    sluice.command("keys", "revoke", revoked.id)
    newer = sluice.command("keys", "rotate", rotated.id, "--quiet").strip()
    canaries = [live, revoked, rotated, Canary(id=rotated.id, value=newer)]
    answers = [answer for canary in canaries for answer in send_everywhere(sluice, canary.value)]
    for canary in canaries:
        send_no_http(sluice, canary.value)
    assert {200, 400, 401, 404, 405} <= {answer.status_code for answer in answers}
    shown = shown_by(sluice, answers)
    assert any(name.startswith("logs") for name in shown)
    assert {"usage_event", "audit_event", "api_key"} <= shown.keys()
    for canary in canaries:
        assert [name for name, text in shown.items() if canary.secret[:20] in text] == []
