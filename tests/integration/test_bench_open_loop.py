"""`sluice bench` with arrivals that wait for nobody, against a real gateway."""

import asyncio
import json
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from deploy.bench.prompts import PromptKind, PromptMaker
from deploy.bench.records import RequestRecord
from deploy.bench.runner import Asking, Run
from deploy.bench.server import connected
from deploy.bench.workload import Conversation, OpenLoad, Segment, Tenant, Turn
from engine.protocol import AdmissionReason, Finished, FinishReason, GenerateRequest, TokenDelta, Usage
from tests.builders.bench_command import (
    STEP_SECONDS,
    TINY_VOCABULARY,
    bench_report,
    obedient,
    sluice_bench,
)
from tests.builders.engine_messages import token_ids_of
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.http_server import serving
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import WebSocketEngine

PROMPT = (Segment(name="a prompt", num_tokens=8),)


async def test_arrivals_do_not_wait_for_answers(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    waiting: list[GenerateRequest] = []

    def answers_the_first_after_the_fourth(engine: WebSocketEngine, request: GenerateRequest) -> None:
        waiting.append(request)
        if len(waiting) >= 4:
            for each in waiting:
                obedient(engine, each)
            waiting.clear()

    gateway.engine.script = answers_the_first_after_the_fourth
    report = await bench_report(
        gateway.url, tmp_path, "--trace", str(azure_trace(tmp_path, [(2, 1)] * 4)), "--time-scale", "0.01"
    )
    assert report["runs"][0]["figures"]["num_complete"] == 4


async def test_a_client_that_leaves_is_cancelled_at_the_engine_and_one_that_stays_is_not(
    gateway: GatewayUnderTest,
) -> None:
    def until_cancelled(engine: WebSocketEngine, request: GenerateRequest) -> None:
        if request.sampling.max_tokens == 2:
            obedient(engine, request)
        else:
            send_letters(engine, request, 100)

    gateway.engine.script = until_cancelled
    ending = asyncio.create_task(end_what_is_cancelled(gateway.engine))
    records = await carried_out(
        gateway,
        conversation(Turn(new_segments=PROMPT, num_output_tokens=100, leaves_after_tokens=2)),
        conversation(Turn(new_segments=PROMPT, num_output_tokens=2)),
    )
    await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
    ending.cancel()
    leaves, stays = sorted(records, key=lambda record: record.is_complete)
    assert (leaves.is_cancelled, stays.is_cancelled) == (True, False)
    assert leaves.error is None
    assert stays.num_completion_tokens == 2


async def test_an_agents_next_prompt_is_the_last_one_its_answer_and_more(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = obedient
    await carried_out(
        gateway,
        conversation(
            Turn(new_segments=PROMPT, num_output_tokens=3),
            Turn(new_segments=(Segment(name="more", num_tokens=2),), num_output_tokens=1),
        ),
    )
    first, second = (request.prompt_ids for request in gateway.engine.received)
    assert second[: len(first) + 3] == first + token_ids_of("aaa")
    assert len(second) > len(first) + 3


async def test_a_conversation_ends_with_the_turn_that_fails(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = fails
    records = await carried_out(gateway, conversation(*[Turn(new_segments=PROMPT, num_output_tokens=3)] * 3))
    assert [record.is_complete for record in records] == [False]


async def test_a_request_whose_time_runs_out_says_so(gateway: GatewayUnderTest) -> None:
    ending = asyncio.create_task(end_what_is_cancelled(gateway.engine))
    [record] = await carried_out(
        gateway, conversation(Turn(new_segments=PROMPT, num_output_tokens=3)), timeout_seconds=0.2
    )
    await gateway.engine.until(lambda: len(gateway.engine.cancelled) == 1)
    ending.cancel()
    assert record.error == "timeout"


async def test_a_refusal_is_counted_under_the_servers_own_word(
    gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    gateway.engine.script = obedient
    report = await bench_report(gateway.url, tmp_path, "--num-requests", "2", "--prompt-tokens", "9999")
    errors = report["runs"][0]["figures"]["errors"]
    assert list(errors.values()) == [2]
    assert next(iter(errors)) in {*(reason.value for reason in AdmissionReason), "context_length_exceeded"}


async def test_cached_tokens_are_told(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    def from_cache(engine: WebSocketEngine, request: GenerateRequest) -> None:
        usage = Usage(prompt_tokens=len(request.prompt_ids), cached_tokens=16, completion_tokens=1)
        engine.send(
            TokenDelta(request.id, token_ids_of("a")), Finished(request.id, FinishReason.LENGTH, usage)
        )

    gateway.engine.script = from_cache
    report = await bench_report(gateway.url, tmp_path, "--num-requests", "2", "--output-tokens", "1")
    assert report["runs"][0]["figures"]["num_cached_tokens"] == 32


async def test_every_tenant_has_its_row(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    report = await bench_report(
        gateway.url, tmp_path, "--tenant", f"acme={GOOD_KEY}", "--tenant", f"beta={GOOD_KEY}:3",
        "--num-requests", "4", "--output-tokens", "1",
    )  # fmt: skip
    figures = report["runs"][0]["figures"]
    assert [(row["name"], row["num_complete"]) for row in figures["tenants"]] == [("acme", 2), ("beta", 2)]
    assert 0.5 < figures["jain_index"] < 1


async def test_a_key_that_is_refused_is_named_by_its_tenant(gateway: GatewayUnderTest) -> None:
    ended = await sluice_bench(
        "--url", gateway.url, "--tenant", f"acme={GOOD_KEY}", "--tenant", "beta=sk-wrong"
    )
    assert ended.status == 1
    assert "refuses the key of beta" in ended.message
    assert "sk-wrong" not in ended.message


async def test_mooncakes_equal_blocks_are_equal_prefixes(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    file = tmp_path / "mooncake.jsonl"
    rows = [[0, 1], [0, 2], [3, 4]]
    file.write_text(
        "".join(
            json.dumps(
                {"timestamp": 10 * number, "input_length": 1024, "output_length": 64, "hash_ids": hash_ids}
            )
            + "\n"
            for number, hash_ids in enumerate(rows)
        )
    )
    await bench_report(gateway.url, tmp_path, "--trace", str(file), "--length-scale", "0.03125")
    first, second, third = sorted(
        (request.prompt_ids for request in gateway.engine.received), key=lambda ids: _place(ids, gateway)
    )
    assert len(first) == 32
    assert first[:16] == second[:16] != third[:16]
    assert first[16:] != second[16:]


async def test_the_page_needs_nothing_else(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    file = tmp_path / "report.html"
    await bench_report(gateway.url, tmp_path, "--num-requests", "3", "--html", str(file))
    page = file.read_text()
    assert "<svg" in page
    for outside in ("<script", "<link", "<img", "@import", "url("):
        assert outside not in page


async def test_figures_of_the_server_are_sampled(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    async with serving(metrics_page) as url:
        report = await bench_report(gateway.url, tmp_path, "--num-requests", "2", "--metrics-url", url)
    sample = report["runs"][0]["samples"][0]
    assert sample["kv_utilization"] == 0.25
    assert sample["resident_bytes"] == 1048576


async def test_two_reports_are_compared_with_ratios(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    await bench_report(gateway.url, tmp_path, "--num-requests", "2")
    file = str(tmp_path / "report.json")
    ended = await sluice_bench("compare", file, file)
    assert ended.status == 0
    assert "1.00 ×" in ended.output
    assert "ttft p95 ms" in ended.output


async def test_a_file_that_is_no_report_is_refused_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")
    ended = await sluice_bench("compare", str(file), str(file))
    assert ended.status == 1
    assert "is no report" in ended.message


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--scenario", "lunch"), 2, "there is no lunch"),
        (("--scenario", "mixed", "--concurrency", "2"), 2, "different loads"),
        (("--url", "localhost:8080"), 2, "write http://localhost:8080"),
        (("--tenant", "acme"), 2, "NAME=KEY"),
        (("--tenant", "acme=k:0"), 2, "above 0"),
        (("--json", "/nowhere/at/all.json"), 1, "there is no folder /nowhere/at"),
        (("--trace", "/nowhere.csv"), 1, "cannot be read"),
    ],
)
async def test_what_is_typed_wrongly_ends_at_once(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    ended = await sluice_bench(*arguments)
    assert ended.status == status
    assert message in ended.message


async def test_a_trace_that_cannot_be_read_names_its_line(tmp_path: Path) -> None:
    file = azure_trace(tmp_path, [(2, 1), (-3, 1)])
    ended = await sluice_bench("--trace", str(file), *TINY_VOCABULARY)
    assert ended.status == 1
    assert "trace.csv line 3" in ended.message


def azure_trace(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    """A file with a request each second."""
    file = folder / "trace.csv"
    lines = [
        f"2023-11-16 18:15:{number:02d}.6805900,{prompt},{output}"
        for number, (prompt, output) in enumerate(sizes)
    ]
    file.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""]))
    return file


def conversation(*turns: Turn) -> Conversation:
    """Of the tenant with the good key, at once."""
    return Conversation(turns=turns, tenant=Tenant(name="acme", key=GOOD_KEY))


async def carried_out(
    gateway: GatewayUnderTest, *conversations: Conversation, timeout_seconds: float = 20
) -> list[RequestRecord]:
    """The records of an open load, in order of their end."""
    asking = Asking(
        model="tiny",
        prompts=PromptMaker(seed=1, vocab_size=250),
        prompt_kind=PromptKind.IDS,
        is_exact=True,
        timeout_seconds=timeout_seconds,
    )
    async with connected(gateway.url) as server:
        run = Run(server, asking, lambda record: None)
        await run.carry_out(OpenLoad(name="a test", conversations=conversations, duration_seconds=1))
    return run.records


def send_letters(engine: WebSocketEngine, request: GenerateRequest, count: int) -> None:
    """So many tokens, one a step, and no end."""
    loop = asyncio.get_running_loop()
    for number in range(count):
        loop.call_later(number * STEP_SECONDS, engine.send, TokenDelta(request.id, token_ids_of("a")))


def fails(engine: WebSocketEngine, request: GenerateRequest) -> None:
    """Ends a request as an engine's error does."""
    engine.send(TokenDelta(request.id, token_ids_of("a")))
    engine.send(Finished(request.id, FinishReason.ERROR, Usage(1, 0, 1)))


async def end_what_is_cancelled(engine: WebSocketEngine) -> None:
    """Ends each cancelled request, as an engine does."""
    ended: list[str] = []
    while True:
        async with engine.changed:
            await engine.changed.wait_for(lambda: len(engine.cancelled) > len(ended))
            for request_id in engine.cancelled[len(ended) :]:
                engine.send(Finished(request_id, FinishReason.CANCELLED, Usage(1, 0, 1)))
                ended.append(request_id)


async def metrics_page(scope: Scope, receive: Receive, send: Send) -> None:
    """A server's page of figures."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    page = b'vllm:kv_cache_usage_perc{engine="0"} 0.25\nprocess_resident_memory_bytes 1.048576e+06\n'
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": page})


def _place(prompt_ids: tuple[int, ...], gateway: GatewayUnderTest) -> int:
    return [request.prompt_ids for request in gateway.engine.received].index(prompt_ids)
