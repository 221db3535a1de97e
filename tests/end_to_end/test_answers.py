"""The official client against the default model: what people get when they use it as they are used to."""

import asyncio
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI
from tokenizers import Tokenizer

from tests.builders.http_clients import openai_client
from tests.builders.near_ties import NearTies
from tests.builders.sluice_process import SluiceProcess

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
TOPICS = ["rivers", "bread", "the moon", "chess", "bees", "glass", "old maps", "rain"]
LENGTHS = [4, 8, 24, 64]


@dataclass(frozen=True)
class Question:
    """A prompt, and how long its answer may be."""

    text: str
    max_tokens: int
    is_streamed: bool


@dataclass(frozen=True)
class Reply:
    """What came back, and when (seconds of the test's clock)."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ended_at: float


QUESTIONS = [
    Question(f"Write about {topic} in your own words.", length, is_streamed=(index + place) % 2 == 0)
    for index, topic in enumerate(TOPICS)
    for place, length in enumerate(LENGTHS)
]


async def ask(client: AsyncOpenAI, question: Question) -> Reply:
    if not question.is_streamed:
        answer = await client.completions.create(
            model=MODEL, prompt=question.text, max_tokens=question.max_tokens, temperature=0
        )
        choice, usage = answer.choices[0], answer.usage
        assert usage is not None
        counts = (usage.prompt_tokens, usage.completion_tokens)
        return Reply(choice.text, choice.finish_reason, *counts, ended_at=time.monotonic())
    pieces, reason, usage = [], None, None
    stream = await client.completions.create(
        model=MODEL,
        prompt=question.text,
        max_tokens=question.max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.text)
            reason = choice.finish_reason or reason
        usage = chunk.usage or usage
    assert usage is not None
    assert reason is not None
    counts = (usage.prompt_tokens, usage.completion_tokens)
    return Reply("".join(pieces), reason, *counts, ended_at=time.monotonic())


async def ask_all(served: SluiceProcess) -> tuple[list[Reply], list[Reply]]:
    """Every question alone, then all at once."""
    async with openai_client(served.api, served.key, max_retries=0) as client:
        alone = [await ask(client, question) for question in QUESTIONS]
        together = await asyncio.gather(*(ask(client, question) for question in QUESTIONS))
    return alone, list(together)


@pytest.fixture(scope="module")
def replies(served: SluiceProcess) -> tuple[list[Reply], list[Reply]]:
    return asyncio.run(ask_all(served))


def test_the_printed_curl_line_answers_as_pasted(served: SluiceProcess) -> None:
    done = subprocess.run(["bash", "-c", served.curl], check=True, capture_output=True, text=True)
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_32_answers_at_once_are_the_same_as_alone(
    replies: tuple[list[Reply], list[Reply]], default_model_dir: Path
) -> None:
    near_ties = NearTies(default_model_dir)
    for question, alone, together in zip(QUESTIONS, *replies, strict=True):
        near_ties.check(question.text, alone.text, together.text)
    print(f"{near_ties.count} of {len(QUESTIONS)} answers part at a near tie")
    assert near_ties.count <= 2


def test_short_answers_finish_while_long_ones_run(replies: tuple[list[Reply], list[Reply]]) -> None:
    _, together = replies
    ends: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for question, reply in zip(QUESTIONS, together, strict=True):
        if reply.finish_reason == "length":  # the model may end a long answer early by itself
            ends[question.max_tokens].append(reply.ended_at)
    assert max(ends[4]) < min(ends[64])


def test_usage_is_exact(replies: tuple[list[Reply], list[Reply]], default_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model_dir / "tokenizer.json"))
    for question, alone, together in zip(QUESTIONS, *replies, strict=True):
        assert alone.prompt_tokens == together.prompt_tokens == len(tokenizer.encode(question.text).ids)
        for reply in (alone, together):
            if reply.finish_reason == "length":
                assert reply.completion_tokens == question.max_tokens
            else:
                assert 1 <= reply.completion_tokens < question.max_tokens


def test_a_chat_answer_is_the_same_streamed_and_whole(served: SluiceProcess) -> None:
    client = OpenAI(base_url=f"{served.api}/v1", api_key=served.key, max_retries=0)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    pieces = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices)
    assert text == whole.choices[0].message.content == "The capital of France is Paris."
    assert whole.choices[0].finish_reason == "stop"
    client.close()


def test_a_seed_fixes_the_draw_whatever_else_runs(served: SluiceProcess) -> None:
    async def draw(client: AsyncOpenAI, seed: int) -> str:
        answer = await client.completions.create(
            model=MODEL, prompt="Once upon a time", max_tokens=12, temperature=1.0, top_p=0.9, seed=seed
        )
        return answer.choices[0].text

    async def run() -> tuple[str, list[str]]:
        async with openai_client(served.api, served.key, max_retries=0) as client:
            alone = await draw(client, 7)
            return alone, await asyncio.gather(*(draw(client, seed) for seed in (7, 8, 9, 7)))

    alone, together = asyncio.run(run())
    assert together[0] == together[3] == alone
    assert len(set(together)) > 1
