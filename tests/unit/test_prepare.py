"""Prompt ids and bounds of the output, against what an engine says it serves."""

import asyncio
from typing import Any

import pytest

from gateway.errors import ContextLengthExceeded, GatewayError, InvalidRequest, NotFound
from gateway.requests.catalogue import Catalogue
from gateway.requests.parse import parse_chat, parse_completion
from gateway.requests.prepare import prepare
from gateway.requests.values import PreparedRequest
from tests.builders.bodies import chat_body, completion_body, encoded
from tests.builders.engine_messages import engine_description, engine_limits, engine_status, token_ids_of


async def catalogue(**changes: Any) -> Catalogue:
    catalogue = Catalogue()
    await catalogue.learn(engine_description(**changes))
    return catalogue


async def prepared_completion(**changes: Any) -> PreparedRequest:
    return await prepare(
        parse_completion(encoded(completion_body(**changes))), (await catalogue()).find("tiny", allowed=None)
    )


async def prepared_chat(**changes: Any) -> PreparedRequest:
    return await prepare(
        parse_chat(encoded(chat_body(**changes))), (await catalogue()).find("tiny", allowed=None)
    )


async def test_messages_are_rendered_with_the_models_template() -> None:
    prepared = await prepared_chat()
    assert prepared.prompt_ids == (
        (1, *token_ids_of("user\nHi"), 2, *token_ids_of("\n"), 1, *token_ids_of("assistant\n"))
    )


async def test_a_long_conversation_is_counted_like_a_short_one() -> None:
    empty = {"role": "user", "content": ""}
    one, two = [len((await prepared_chat(messages=[empty] * number)).prompt_ids) for number in (1, 2)]
    with pytest.raises(ContextLengthExceeded, match=f"{one + 999 * (two - one)} in the messages"):
        await prepared_chat(messages=[empty] * 1_000)


async def test_a_long_text_is_encoded_like_a_short_one() -> None:
    model = (await catalogue()).find("tiny", allowed=None)
    text = "é" * 5_000
    assert await model.text.tokenizer.encode(text, add_special_tokens=True) == token_ids_of(text)


async def test_encoding_a_huge_text_does_not_hold_up_the_loop() -> None:
    tokenizer = (await catalogue()).find("tiny", allowed=None).text.tokenizer
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    encoding = asyncio.create_task(tokenizer.encode("x" * 2_000_000, add_special_tokens=True))
    longest_pause = 0.0
    while not encoding.done():
        before = loop.time()
        await asyncio.sleep(0)
        longest_pause = max(longest_pause, loop.time() - before)
    assert longest_pause < (loop.time() - started_at) / 2


async def test_an_explicit_max_tokens_is_cap_and_floor() -> None:
    prepared = await prepared_completion(max_tokens=20)
    assert (prepared.output_cap, prepared.output_floor, prepared.sampling.max_tokens) == (20, 20, 20)


async def test_a_chat_without_max_tokens_may_use_what_there_is_room_for() -> None:
    template_tokens = len((await prepared_chat(messages=[{"role": "user", "content": ""}])).prompt_ids)
    fitting = [{"role": "user", "content": "a" * (500 - template_tokens)}]
    assert (await prepared_chat(messages=fitting)).output_cap == 12
    assert (await prepared_chat()).output_cap == 256


async def test_a_completion_without_max_tokens_gets_16_tokens_or_what_there_is_room_for() -> None:
    assert (await prepared_completion(prompt="a")).output_cap == 16
    assert (await prepared_completion(prompt="a" * 500)).output_cap == 12
    assert (await prepared_completion(prompt="a", min_tokens=20)).output_cap == 20


async def test_without_max_tokens_the_floor_is_below_the_cap_so_that_a_small_limit_can_lower_it() -> None:
    prepared = await prepared_completion(prompt="a")
    assert prepared.output_floor < prepared.output_cap


async def test_prompt_and_output_just_fit_the_context() -> None:
    assert (await prepared_completion(prompt="a" * 500, max_tokens=12)).output_cap == 12


@pytest.mark.parametrize(
    ("length", "max_tokens", "requested"), [(500, 13, 513), (512, None, 512), (9999, 1, 10000)]
)
async def test_more_than_the_context_is_refused_with_both_numbers(
    length: int, max_tokens: int | None, requested: int
) -> None:
    with pytest.raises(ContextLengthExceeded) as refusal:
        await prepared_completion(prompt="a" * length, max_tokens=max_tokens)
    assert refusal.value.param == "prompt"
    assert refusal.value.code == "context_length_exceeded"
    assert "512 tokens" in refusal.value.message
    assert f"{requested} tokens" in refusal.value.message


async def test_a_long_chat_names_its_messages() -> None:
    with pytest.raises(ContextLengthExceeded) as refusal:
        await prepared_chat(messages=[{"role": "user", "content": "a" * 600}])
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": 257}, "max_tokens"),
        ({"min_tokens": 300}, "min_tokens"),
        ({"prompt": [3, 259]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
    ],
)
async def test_what_the_model_cannot_do_is_refused_naming_the_parameter(
    changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await prepared_completion(**changes)
    assert refusal.value.param == param


async def test_a_model_without_a_template_cannot_chat() -> None:
    model = (await catalogue(chat_template=None)).find("tiny", allowed=None)
    with pytest.raises(InvalidRequest, match="chat template"):
        await prepare(parse_chat(encoded(chat_body())), model)


async def test_a_template_that_refuses_is_the_requests_error() -> None:
    model = (await catalogue(chat_template="{{ raise_exception('roles must alternate') }}")).find(
        "tiny", allowed=None
    )
    with pytest.raises(GatewayError, match="roles must alternate"):
        await prepare(parse_chat(encoded(chat_body())), model)


async def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFound) as refusal:
        (await catalogue()).find("huge", allowed=None)
    assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")


async def test_limits_follow_the_engines_status() -> None:
    known = await catalogue()
    known.follow(engine_status(limits=engine_limits(max_model_len=10)))
    assert known.find("tiny", allowed=None).limits.max_model_len == 10


async def test_a_seed_is_drawn_when_none_is_given_and_kept_when_one_is() -> None:
    drawn = {(await prepared_completion()).sampling.seed for _ in range(3)}
    assert len(drawn) == 3
    assert (await prepared_completion(seed=7)).sampling.seed == 7
    assert 0 <= (await prepared_completion(seed=-7)).sampling.seed < 2**63
