"""Header values of the published API."""

import pytest

from gateway.api.context import make_context
from gateway.api.headers import go_duration, retry_headers
from tests.fakes.keys import GOOD_KEY


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0004, "1ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.2, "2s"),
        (59.5, "1m0s"),
        (360, "6m0s"),
        (3605, "1h0m5s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "whole", "exact"), [(0.05, b"1", b"50"), (1.2, b"2", b"1200"), (3, b"3", b"3000")]
)
def test_retry_after_is_a_whole_number_of_at_least_one(seconds: float, whole: bytes, exact: bytes) -> None:
    headers = retry_headers(retry_after_seconds=seconds, should_retry=None)
    assert headers == [(b"retry-after", whole), (b"retry-after-ms", exact)]


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "trace_id", "request_id"),
    [
        ({"traceparent": TRACEPARENT, "x-request-id": "mine"}, TRACE, "mine"),
        ({"x-request-id": "mine"}, "mine", "mine"),
        ({"traceparent": TRACEPARENT}, TRACE, None),
        ({"traceparent": "nonsense", "x-request-id": "bad id\r\nx: y"}, None, None),
        ({"x-request-id": "x" * 129}, None, None),
        ({"x-request-id": f"mine.{GOOD_KEY}"}, None, None),
        ({"x-request-id": f"mine_{GOOD_KEY}"}, None, None),
        ({"x-request-id": "task-12345678"}, "task-12345678", "task-12345678"),
    ],
)
def test_ids_are_taken_when_they_are_well_formed_and_made_otherwise(
    headers: dict[str, str], trace_id: str | None, request_id: str | None
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    context = make_context({"headers": raw}, now=0.0)
    assert trace_id is None or context.trace_id == trace_id
    assert request_id is None or context.request_id == request_id
    assert len(context.trace_id) <= 128
    assert request_id is not None or context.request_id.startswith("req_")
    assert GOOD_KEY not in context.trace_id


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("600", 600.0), ("0.5", 0.5), ("0", None), ("-1", None), ("inf", None), ("nan", None), ("x", None)],
)
def test_a_clients_patience_is_a_positive_number_of_seconds(value: str, seconds: float | None) -> None:
    context = make_context({"headers": [(b"x-stainless-read-timeout", value.encode())]}, now=0.0)
    assert context.read_timeout_seconds == seconds
