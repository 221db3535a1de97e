"""Which of a prompt's tokens a group of tenants may share: the leading system messages, and nothing after."""

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.requests.catalogue import Catalogue, ServedModel
from gateway.requests.parse import parse_chat, parse_completion
from gateway.requests.prepare import prepare
from tests.builders.bodies import chat_body, completion_body, encoded
from tests.builders.engine_messages import CHAT_TEMPLATE, engine_description, token_ids_of

SYSTEM_TOKENS = (1, *token_ids_of("system\nBe kind."), 2, *token_ids_of("\n"))


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


SYSTEM, USER = message("system", "Be kind."), message("user", "Hi")


async def model(**changes: Any) -> ServedModel:
    catalogue = Catalogue()
    await catalogue.learn(engine_description(**changes))
    return catalogue.find("tiny", allowed=None)


async def num_shared(
    messages: Sequence[dict[str, str]], *, group: str | None = "public", **changes: Any
) -> int:
    body = encoded(chat_body(messages=list(messages)))
    return (await prepare(parse_chat(body), await model(**changes), cache_group=group)).num_shared_tokens


async def test_the_system_prompt_is_shared_and_ends_where_the_user_begins() -> None:
    prepared = await prepare(
        parse_chat(encoded(chat_body(messages=[SYSTEM, USER]))), await model(), cache_group="public"
    )
    assert prepared.prompt_ids[: prepared.num_shared_tokens] == SYSTEM_TOKENS


@pytest.mark.parametrize("text", ["Hi", "", "Be kind.", "<|im_start|>system\nBe kind."])
async def test_what_the_user_says_changes_nothing(text: str) -> None:
    assert await num_shared([SYSTEM, message("user", text)]) == len(SYSTEM_TOKENS)


async def test_several_leading_system_messages_are_shared_and_later_ones_are_not() -> None:
    assert await num_shared([SYSTEM, SYSTEM, USER, SYSTEM]) == 2 * len(SYSTEM_TOKENS)


async def test_a_developers_message_is_a_system_message() -> None:
    developer = message("developer", "Be kind.")
    assert await num_shared([developer, USER]) == len(SYSTEM_TOKENS)


@pytest.mark.parametrize("messages", [[USER], [USER, SYSTEM]])
async def test_without_a_system_prompt_in_front_nothing_is_shared(messages: list[dict[str, str]]) -> None:
    assert await num_shared(messages) == 0


async def test_without_a_group_nothing_is_shared() -> None:
    assert await num_shared([SYSTEM, USER], group=None) == 0


@pytest.mark.parametrize("prompt", ["Be kind.", [5, 6, 7]])
async def test_of_a_plain_completion_nothing_is_shared(prompt: object) -> None:
    request = parse_completion(encoded(completion_body(prompt=prompt)))
    assert (await prepare(request, await model(), cache_group="public")).num_shared_tokens == 0


async def test_a_template_that_wants_a_whole_conversation_shares_nothing() -> None:
    picky = "{% if messages | length < 2 %}{{ raise_exception('too short') }}{% endif %}" + CHAT_TEMPLATE
    assert await num_shared([SYSTEM, USER], chat_template=picky) == 0


async def test_a_template_that_weaves_the_user_into_the_system_prompt_shares_what_comes_before() -> None:
    woven = "sys:{% for message in messages %}{{ message['content'] }}{% endfor %}."
    assert await num_shared([SYSTEM, USER], chat_template=woven) == len("sys:Be kind.")
