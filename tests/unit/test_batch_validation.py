"""What is wrong with a line of a batch's input, and what is kept of one that is right."""

import pytest

from gateway.batches.lines import BYTE_ORDER_MARK
from gateway.requests.parse import parse_chat
from gateway.requests.prepare import prepare
from tests.builders.batch_input import (
    CHAT,
    COMPLETIONS,
    chat_line,
    completion_line,
    line,
    served_model,
    validated,
)
from tests.builders.bodies import chat_body, encoded
from tests.builders.engine_messages import engine_description, engine_limits


def test_offsets_lead_back_to_the_very_line() -> None:
    lines = [chat_line("first"), chat_line("second", messages=[{"role": "user", "content": "äöü 漢字"}])]
    content = b"\n".join(lines)
    items = validated(content).items
    assert [content[item.first_byte :][: item.num_bytes] for item in items] == lines
    assert [(item.line, item.custom_id) for item in items] == [(1, "first"), (2, "second")]


async def test_prompt_tokens_are_those_that_the_request_itself_would_have() -> None:
    (item,) = validated(chat_line()).items
    prepared = await prepare(parse_chat(encoded(chat_body())), served_model())
    assert item.prompt_tokens == len(prepared.prompt_ids)


def test_tokens_of_all_lines_are_added_up() -> None:
    outcome = validated(
        b"\n".join([completion_line("a", prompt="abc"), completion_line("b", prompt=[5, 6])]),
        endpoint=COMPLETIONS,
    )
    assert ([item.prompt_tokens for item in outcome.items], outcome.num_tokens) == ([3, 2], 5)


def test_prompts_that_begin_alike_have_one_prefix() -> None:
    def prefix(prompt: str) -> int:
        (item,) = validated(completion_line(prompt=prompt), endpoint=COMPLETIONS).items
        return item.prefix

    assert prefix("x" * 64 + "a") == prefix("x" * 64 + "b")
    assert prefix("x" * 63 + "a") != prefix("x" * 63 + "b")
    assert prefix("x" * 32 + "a") >> 32 == prefix("x" * 32 + "b") >> 32
    assert prefix("ab") != prefix("abc")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \t\n"])
def test_a_file_may_end_in_any_white_space(end: bytes) -> None:
    outcome = validated(chat_line("a") + b"\r\n\n" + chat_line("b") + end)
    assert ([item.line for item in outcome.items], outcome.faults) == ([1, 3], ())


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\t\n", BYTE_ORDER_MARK, BYTE_ORDER_MARK + b"\r\n"])
def test_a_file_without_requests_is_told(content: bytes) -> None:
    assert validated(content).told == [("empty_file", None, "input_file_id")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_file_may_begin_with_a_byte_order_mark(end: bytes) -> None:
    content = BYTE_ORDER_MARK + end.join([chat_line("a"), chat_line("b")])
    outcome = validated(content)
    assert ([item.line for item in outcome.items], outcome.faults) == ([1, 2], ())
    assert outcome.items[0].first_byte == len(BYTE_ORDER_MARK)
    found = [content[item.first_byte :][: item.num_bytes].rstrip() for item in outcome.items]
    assert found == [chat_line("a"), chat_line("b")]


def test_a_byte_order_mark_is_no_part_of_how_long_the_first_line_may_be() -> None:
    longest = len(chat_line("a"))
    assert validated(BYTE_ORDER_MARK + chat_line("a"), max_line_bytes=longest).faults == ()
    too_long = validated(BYTE_ORDER_MARK + chat_line("bb") + b"\n" + chat_line("c"), max_line_bytes=longest)
    assert too_long.told == [("line_too_large", 1, None)]
    assert [item.custom_id for item in too_long.items] == ["c"]


GOOD = chat_line("good")
FAULTY = {
    "not JSON": (b"{", "invalid_json_line", None),
    "a list": (b"[]", "invalid_json_line", None),
    "two objects": (chat_line() + chat_line(), "invalid_json_line", None),
    "a byte order mark further on": (BYTE_ORDER_MARK + chat_line(), "invalid_json_line", None),
    "not UTF-8": (chat_line().replace(b"Hi", b"\xff"), "invalid_json_line", None),
    "a bare NUL": (chat_line().replace(b"Hi", b"\0"), "invalid_json_line", None),
    "a lone surrogate in the prompt": (chat_line().replace(b"Hi", b"\\ud800"), "invalid_json_line", None),
    "a lone surrogate in custom_id": (
        chat_line("\\").replace(b"\\\\", b"\\ud800"),
        "invalid_json_line",
        None,
    ),
    "nested too deeply": (b'{"body":' + b"[" * 5_000, "invalid_json_line", None),
    "no custom_id": (
        line(method="POST", url=CHAT, body=chat_body()),
        "missing_required_parameter",
        "custom_id",
    ),
    "an empty custom_id": (chat_line(""), "invalid_value", "custom_id"),
    "a custom_id that is a number": (
        line(custom_id=1, method="POST", url=CHAT, body={}),
        "invalid_value",
        "custom_id",
    ),
    "a custom_id of 513 characters": (chat_line("x" * 513), "invalid_value", "custom_id"),
    "a custom_id with a NUL": (chat_line("a\0"), "invalid_value", "custom_id"),
    "a custom_id again": (GOOD, "duplicate_custom_id", "custom_id"),
    "another method": (chat_line(method="GET"), "invalid_method", "method"),
    "another endpoint": (chat_line(url=COMPLETIONS), "url_mismatch", "url"),
    "no body": (line(custom_id="one", method="POST", url=CHAT), "missing_required_parameter", "body"),
    "a body that is a text": (
        line(custom_id="one", method="POST", url=CHAT, body="x"),
        "invalid_request",
        "body",
    ),
    "an unknown model": (chat_line(model="large"), "model_mismatch", "body.model"),
    "no messages": (chat_line(messages=None), "missing_required_parameter", "body.messages"),
    "an unknown role": (
        chat_line(messages=[{"role": "x", "content": ""}]),
        "invalid_value",
        "body.messages[0].role",
    ),
    "a stream": (chat_line(stream=True), "unsupported_value", "body.stream"),
    "what is not supported": (chat_line(n=2), "unsupported_value", "body.n"),
    "a prompt that is too long": (
        chat_line(messages=[{"role": "user", "content": "x" * 600}]),
        "context_length_exceeded",
        "body.messages",
    ),
    "more output than there may be": (chat_line(max_tokens=100_000), "invalid_request", "body.max_tokens"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_what_is_wrong_is_told_with_its_line(name: str) -> None:
    faulty, code, param = FAULTY[name]
    outcome = validated(b"\n".join([GOOD, b"", faulty, chat_line("last")]))
    assert outcome.told == [(code, 3, param)]
    assert [item.custom_id for item in outcome.items] == ["good", "last"]


def test_what_is_in_a_body_that_is_not_the_endpoints_is_told() -> None:
    outcome = validated(completion_line(prompt=[5, 10_000]), endpoint=COMPLETIONS)
    assert outcome.told == [("invalid_request", 1, "body.prompt[1]")]


def test_a_model_that_the_key_may_not_use_does_not_exist() -> None:
    outcome = validated(chat_line("a", model="large") + b"\n" + chat_line("b"))
    assert outcome.told == [("model_not_found", 1, "body.model")]


def test_one_batch_asks_one_model() -> None:
    models = (served_model(), served_model(engine_description(model="large")))
    outcome = validated(chat_line("a") + b"\n" + chat_line("b", model="large"), models=models)
    assert outcome.told == [("model_mismatch", 2, "body.model")]


def test_any_service_tier_is_offline() -> None:
    assert validated(chat_line(service_tier="default")).faults == ()


def test_a_custom_id_again_names_the_line_that_had_it_first() -> None:
    (fault,) = validated(b"\n".join([chat_line("a"), chat_line("b"), chat_line("a")])).faults
    assert (fault.line, "line 1" in fault.message) == (3, True)


def test_a_line_that_is_too_long_is_told_and_the_next_one_is_read() -> None:
    longest = len(chat_line("a"))
    content = b"\n".join([chat_line("a"), chat_line("bb"), b"x" * 3_000_000, chat_line("c"), chat_line("dd")])
    outcome = validated(content, max_line_bytes=longest)
    assert outcome.told == [
        ("line_too_large", 2, None),
        ("line_too_large", 3, None),
        ("line_too_large", 5, None),
    ]
    assert [content[item.first_byte :][: item.num_bytes] for item in outcome.items] == [
        chat_line("a"),
        chat_line("c"),
    ]


def test_more_lines_than_there_may_be_end_the_reading() -> None:
    content = b"\n".join(chat_line(str(number)) for number in range(5))
    assert validated(content, max_lines=5).faults == ()
    assert validated(content, max_lines=4).told == [("too_many_tasks", 5, "input_file_id")]


def test_a_hundred_faults_are_listed_and_the_last_tells_how_many_there_are() -> None:
    faults = validated(b"x\n" * 250).faults
    assert (len(faults), [fault.line for fault in faults[:2]]) == (100, [1, 2])
    assert "250" in faults[-1].message
    assert "100" not in validated(b"x\n" * 100).faults[-1].message


def test_faults_are_told_in_the_order_of_their_lines() -> None:
    too_long = chat_line("a", messages=[{"role": "user", "content": "x" * 600}])
    assert [fault.line for fault in validated(too_long + b"\n{\n").faults] == [1, 2]


def test_a_prompt_that_fills_the_context_is_told_against_the_limits_in_force() -> None:
    small = served_model(engine_description(limits=engine_limits(max_model_len=10)))
    assert validated(chat_line(), models=(small,)).told == [("context_length_exceeded", 1, "body.messages")]


def test_no_message_repeats_a_key() -> None:
    secret = "sk-live-abcdefghijkl-" + "x" * 40
    faults = validated(
        b"\n".join([chat_line(secret), chat_line(secret), chat_line("a", model=secret)])
    ).faults
    assert not any(secret in fault.message for fault in faults)
