"""`sluice bench` as a person types it, a fixed number at a time, against a real gateway."""

from pathlib import Path

import pytest

from engine.protocol import GenerateRequest
from tests.builders.bench_command import TINY_VOCABULARY, bench_report, obedient, sluice_bench
from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import WebSocketEngine


async def test_every_request_is_sent_and_counted_once(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    arguments = ("--concurrency", "3", "--num-requests", "7", "--prompt-tokens", "20", "--output-tokens", "5")
    report = await bench_report(gateway.url, tmp_path, *arguments)
    figures = report["runs"][0]["figures"]
    assert len(gateway.engine.received) == 7
    assert figures["num_complete"] == 7
    assert figures["num_prompt_tokens"] == 7 * 20
    assert figures["num_completion_tokens"] == 7 * 5
    assert 1 <= figures["latencies_ms"]["itl"]["count"] <= 7 * 4, "a gateway may join what comes at once"
    assert set(figures["latencies_ms"]) == {"ttft", "itl", "tpot", "e2e", "jitter", "late"}


async def test_the_length_of_answers_is_forced(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    await bench_report(gateway.url, tmp_path, "--num-requests", "1", "--output-tokens", "5")
    sampling = gateway.engine.received[0].sampling
    assert (sampling.temperature, sampling.min_tokens, sampling.max_tokens) == (0, 5, 5)
    assert sampling.ignore_eos


async def test_one_seed_sends_the_same_prompts_again(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    for _ in range(2):
        await bench_report(gateway.url, tmp_path, "--num-requests", "3", "--output-tokens", "1")
    prompts = [request.prompt_ids for request in gateway.engine.received]
    assert prompts[:3] == prompts[3:]
    assert len(set(prompts)) == 3


async def test_no_more_are_under_way_than_asked(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    def all_at_once(engine: WebSocketEngine, request: GenerateRequest) -> None:
        if len(engine.received) % 2 == 0:
            for waiting in engine.received[-2:]:
                obedient(engine, waiting)

    gateway.engine.script = all_at_once
    await bench_report(
        gateway.url, tmp_path, "--concurrency", "2", "--num-requests", "6", "--output-tokens", "1"
    )
    assert len(gateway.engine.received) == 6


async def test_warm_up_requests_are_sent_and_not_counted(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    report = await bench_report(gateway.url, tmp_path, "--num-requests", "2", "--warmup-requests", "3")
    assert len(gateway.engine.received) == 5
    assert report["runs"][0]["figures"]["num_requests"] == 2
    assert len({request.prompt_ids for request in gateway.engine.received}) == 5


async def test_the_table_says_what_was_measured(gateway: GatewayUnderTest) -> None:
    gateway.engine.script = obedient
    ended = await sluice_bench(
        "--url",
        gateway.url,
        "--key",
        GOOD_KEY,
        *TINY_VOCABULARY,
        "--num-requests",
        "2",
        "--output-tokens",
        "3",
    )
    assert "2 of 2 in" in ended.output
    for measure in ("ttft", "itl", "tpot", "e2e", "jitter"):
        assert measure in ended.output


async def test_text_prompts_arrive_as_words(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    gateway.engine.script = obedient
    arguments = ("--num-requests", "1", "--prompt-tokens", "4", "--prompt-kind", "text")
    await bench_report(gateway.url, tmp_path, *arguments)
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
