"""`sluice bench` as a person types it, and an engine's script that obeys the lengths it is asked for."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from deploy.cli import app
from deploy.foreseeable import FORESEEABLE
from engine.protocol import FinishReason, GenerateRequest, TokenDelta
from tests.builders.engine_messages import token_ids_of
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import WebSocketEngine, finished

STEP_SECONDS = 0.01
TINY_VOCABULARY = ("--vocab-size", "250")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    message: str


async def sluice_bench(*arguments: str) -> Ended:
    """Runs the command in a thread of its own, so that a gateway in this loop can answer it."""
    runner = CliRunner(env={"COLUMNS": "200"})
    result = await asyncio.to_thread(runner.invoke, app, ["bench", *arguments])
    is_foreseeable = isinstance(result.exception, FORESEEABLE)
    if result.exception is not None and not is_foreseeable and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(
        status=result.exit_code,
        output=result.stdout,
        message=str(result.exception) if is_foreseeable else result.stderr,
    )


async def bench_report(url: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What a run with the good key and a vocabulary of bytes leaves in its JSON file."""
    keys = () if "--tenant" in arguments else ("--key", GOOD_KEY)
    file = tmp_path / "report.json"
    ended = await sluice_bench("--url", url, *keys, "--json", str(file), *TINY_VOCABULARY, *arguments)
    assert ended.status == 0, ended
    report = json.loads(file.read_text())
    assert isinstance(report, dict)
    return report


def obedient(engine: WebSocketEngine, request: GenerateRequest) -> None:
    """Sends as many tokens as the request wants, one a step."""
    loop, num_tokens = asyncio.get_running_loop(), request.sampling.max_tokens
    for number in range(num_tokens):
        loop.call_later(number * STEP_SECONDS, engine.send, TokenDelta(request.id, token_ids_of("a")))
    end = finished(request, FinishReason.LENGTH, num_tokens)
    loop.call_later(num_tokens * STEP_SECONDS, engine.send, end)
