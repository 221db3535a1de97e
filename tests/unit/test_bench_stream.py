"""Reading streamed answers as different servers write them."""

import pytest

from deploy.bench.stream import AnswerReader, reason_of


def read(*chunks: str) -> AnswerReader:
    """Fed one chunk a second."""
    reader = AnswerReader()
    for second, chunk in enumerate(chunks):
        reader.feed(chunk.encode(), float(second))
    return reader


def test_text_has_the_time_of_its_event() -> None:
    reader = read(
        'data: {"choices":[{"text":"a"}]}\n\n',
        'data: {"choices":[{"text":""}]}\n\n',
        'data: {"choices":[{"text":"b","finish_reason":"length"}]}\n\ndata: [DONE]\n\n',
    )
    assert reader.token_times == [0.0, 2.0]
    assert reader.text == "ab"
    assert reader.error is None


def test_chat_deltas_are_read_too() -> None:
    reader = read(
        'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n',
    )
    assert reader.token_times == [1.0]


def test_usage_is_taken_wherever_it_comes() -> None:
    usage = '{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}'
    reader = read(f'data: {{"choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n')
    assert reader.usage is not None
    assert (reader.usage.prompt_tokens, reader.usage.completion_tokens) == (7, 2)
    assert reader.usage.prompt_tokens_details is not None
    assert reader.usage.prompt_tokens_details.cached_tokens == 4


def test_usage_without_details_is_usage() -> None:
    reader = read(
        'data: {"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":null}}\n\n'
    )
    assert reader.usage is not None
    assert reader.usage.prompt_tokens_details is None


def test_a_stream_that_stops_in_the_middle_is_an_error() -> None:
    assert read('data: {"choices":[{"text":"a"}]}\n\n').error == "stream_cut"


def test_an_error_inside_a_stream_is_the_answers_reason() -> None:
    reader = read('data: {"error":{"message":"x","type":"server_error","code":"engine_lost"}}\n\n')
    assert reader.error == "engine_lost"


def test_what_is_no_json_is_an_error() -> None:
    assert read("data: {oops\n\n", "data: [DONE]\n\n").error == "unreadable_answer"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"error":{"reason":"kv_full","code":"overloaded","type":"server_error"}}', "kv_full"),
        ('{"error":{"code":"rate_limit_exceeded","type":"tokens"}}', "rate_limit_exceeded"),
        ('{"error":{"code":400,"type":"BadRequestError","message":"too long"}}', "BadRequestError"),
        ('{"object":"error","type":"invalid_request_error","code":null}', "invalid_request_error"),
        ('{"detail":"no"}', "http_503"),
        ("[1]", "http_503"),
        ("<html>", "http_503"),
        ("", "http_503"),
    ],
)
def test_a_failure_has_the_shortest_word_that_a_server_gives(body: str, reason: str) -> None:
    assert reason_of(body.encode(), status=503) == reason
