"""`sluice bench` as a person types it, a fixed number at a time, against a real gateway."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.cli import FORESEEABLE, app
from engine.protocol import FinishReason, GenerateRequest, TokenDelta
from tests.builders.engine_messages import token_ids_of
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import WebSocketEngine, finished
from tests.fixtures_gateway import GatewayUnderTest

STEP_SECONDS = 0.01
TINY = ("--vocab-size", "250")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    message: str


async def sluice_bench(*arguments: str) -> Ended:
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


def obedient(engine: WebSocketEngine, request: GenerateRequest) -> None:
    """Sends as many tokens as the request wants, one a step."""
    loop, num_tokens = asyncio.get_running_loop(), request.sampling.max_tokens
    for number in range(num_tokens):
        loop.call_later(number * STEP_SECONDS, engine.send, TokenDelta(request.id, token_ids_of("a")))
    end = finished(request, FinishReason.LENGTH, num_tokens)
    loop.call_later(num_tokens * STEP_SECONDS, engine.send, end)


async def report_of(gateway: GatewayUnderTest, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    file = tmp_path / "report.json"
    ended = await sluice_bench(
        "--url", gateway.url, "--key", GOOD_KEY, "--json", str(file), *TINY, *arguments
    )
    assert ended.status == 0, ended
    report = json.loads(file.read_text())
    assert isinstance(report, dict)
    return report


async def test_every_request_is_sent_and_counted_once(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    arguments = ("--concurrency", "3", "--num-requests", "7", "--prompt-tokens", "20", "--output-tokens", "5")
    report = await report_of(gateway, tmp_path, *arguments)
    figures = report["runs"][0]["figures"]
    assert len(gateway.engine.received) == 7
    assert figures["num_complete"] == 7
    assert figures["num_prompt_tokens"] == 7 * 20
    assert figures["num_completion_tokens"] == 7 * 5
    assert 1 <= figures["latencies_ms"]["itl"]["count"] <= 7 * 4, "a gateway may join what comes at once"
    assert set(figures["latencies_ms"]) == {"ttft", "itl", "tpot", "e2e", "jitter", "late"}


async def test_the_length_of_answers_is_forced(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    await report_of(gateway, tmp_path, "--num-requests", "1", "--output-tokens", "5")
    sampling = gateway.engine.received[0].sampling
    assert (sampling.temperature, sampling.min_tokens, sampling.max_tokens) == (0, 5, 5)
    assert sampling.ignore_eos


async def test_one_seed_sends_the_same_prompts_again(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    for _ in range(2):
        await report_of(gateway, tmp_path, "--num-requests", "3", "--output-tokens", "1")
    prompts = [request.prompt_ids for request in gateway.engine.received]
    assert prompts[:3] == prompts[3:]
    assert len(set(prompts)) == 3


async def test_no_more_are_under_way_than_asked(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    def all_at_once(engine: WebSocketEngine, request: GenerateRequest) -> None:
        if len(engine.received) % 2 == 0:
            for waiting in engine.received[-2:]:
                obedient(engine, waiting)

    gateway.engine.script = all_at_once
    await report_of(gateway, tmp_path, "--concurrency", "2", "--num-requests", "6", "--output-tokens", "1")
    assert len(gateway.engine.received) == 6


async def test_warm_up_requests_are_sent_and_not_counted(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    report = await report_of(gateway, tmp_path, "--num-requests", "2", "--warmup-requests", "3")
    assert len(gateway.engine.received) == 5
    assert report["runs"][0]["figures"]["num_requests"] == 2
    assert len({request.prompt_ids for request in gateway.engine.received}) == 5


async def test_the_table_says_what_was_measured(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = obedient
    ended = await sluice_bench(
        "--url", gateway.url, "--key", GOOD_KEY, *TINY, "--num-requests", "2", "--output-tokens", "3"
    )
    assert "2 of 2 requests complete" in ended.output
    for measure in ("ttft", "itl", "tpot", "e2e", "jitter"):
        assert measure in ended.output


async def test_text_prompts_arrive_as_words(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    arguments = ("--num-requests", "1", "--prompt-tokens", "4", "--prompt-kind", "text")
    await report_of(gateway, tmp_path, *arguments)
    text = bytes(token_id - 3 for token_id in gateway.engine.received[0].prompt_ids).decode()
    assert len(text.split()) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://127.0.0.1:9"), "nothing answers at http://127.0.0.1:9"),
        (("--key", "sk-wrong"), "refuses the key of default"),
        (("--key", GOOD_KEY, "--model", "huge"), "has no model huge; it has: tiny"),
    ],
)
async def test_what_cannot_work_ends_with_one_line(
    gateway: GatewayUnderTest, arguments: tuple[str, ...], message: str
) -> None:
    ended = await sluice_bench("--url", gateway.url, *arguments)
    assert ended.status == 1
    assert message in ended.message
    assert "\n" not in ended.message.strip()


async def test_a_wrong_slo_is_a_matter_of_usage(gateway: GatewayUnderTest) -> None:
    ended = await sluice_bench("--url", gateway.url, "--slo", "ttft=fast")
    assert ended.status == 2
    assert "ttft=1500ms" in ended.message
