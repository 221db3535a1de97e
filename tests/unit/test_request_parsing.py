"""Bodies become values, or errors that name the parameter."""

from typing import Any

import pytest

from engine.protocol import RequestClass
from gateway.errors import InvalidRequest
from gateway.requests.parse import parse_chat, parse_completion
from gateway.requests.values import ChatPrompt, InferenceRequest, TextPrompt, TokenPrompt
from tests.builders.bad_bodies import BAD_CHAT_BODIES, BAD_COMPLETION_BODIES
from tests.builders.bodies import chat_body, completion_body, encoded


def chat(**changes: Any) -> InferenceRequest:
    return parse_chat(encoded(chat_body(**changes)))


def completion(**changes: Any) -> InferenceRequest:
    return parse_completion(encoded(completion_body(**changes)))


@pytest.mark.parametrize(("name", "body", "param"), BAD_CHAT_BODIES, ids=[bad[0] for bad in BAD_CHAT_BODIES])
def test_a_bad_chat_body_is_refused_naming_the_parameter(name: str, body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_chat(body)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("name", "body", "param"), BAD_COMPLETION_BODIES, ids=[bad[0] for bad in BAD_COMPLETION_BODIES]
)
def test_a_bad_completion_body_is_refused_naming_the_parameter(
    name: str, body: bytes, param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_completion(body)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"logprobs": False, "top_logprobs": 0},
        {"logit_bias": {}},
        {"modalities": ["text"]},
        {"store": True, "user": "u", "metadata": {"a": "b"}, "safety_identifier": "s"},
        {"prompt_cache_key": "k", "reasoning_effort": "low", "verbosity": "low", "something_new": {}},
    ],
)
def test_parameters_that_ask_for_nothing_special_are_accepted(neutral: dict[str, Any]) -> None:
    assert chat(**neutral) == chat()


def test_explicit_nulls_are_absent_values() -> None:
    names = ["max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "n", "tools"]
    body = chat_body() | dict.fromkeys(names)
    assert parse_chat(encoded(body)) == chat()


def test_max_completion_tokens_wins() -> None:
    assert chat(max_tokens=1, max_completion_tokens=10).max_tokens == 10


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "user", "content": parts}])
    assert request.prompt == ChatPrompt(({"role": "user", "content": "ab"},))


def test_a_developer_message_is_a_system_message() -> None:
    request = chat(messages=[{"role": "developer", "content": "x"}])
    assert request.prompt == ChatPrompt(({"role": "system", "content": "x"},))


@pytest.mark.parametrize(
    ("tier", "request_class"),
    [
        (None, RequestClass.INTERACTIVE),
        ("auto", RequestClass.INTERACTIVE),
        ("default", RequestClass.INTERACTIVE),
        ("flex", RequestClass.OFFLINE),
    ],
)
def test_the_service_tier_chooses_the_class(tier: str | None, request_class: RequestClass) -> None:
    assert chat(service_tier=tier).request_class is request_class


@pytest.mark.parametrize(("stop", "stops"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())])
def test_stop_is_a_string_or_a_list(stop: Any, stops: tuple[str, ...]) -> None:
    assert chat(stop=stop).stops == stops


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", TextPrompt("Hi")),
        (["Hi"], TextPrompt("Hi")),
        ([5, 6], TokenPrompt((5, 6))),
        ([[5, 6]], TokenPrompt((5, 6))),
        ([5], TokenPrompt((5,))),
    ],
)
def test_a_prompt_is_a_text_or_ids_alone_or_in_a_list(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompt == expected


def test_usage_is_included_only_when_asked_for() -> None:
    assert not chat(stream=True).include_usage
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
