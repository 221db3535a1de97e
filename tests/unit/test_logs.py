"""Log lines are JSON and hold no keys."""

import json
import logging
import sys

import pytest

from gateway.logs import JsonFormatter

CANARY = "sk-live-abcdefghijkl-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH123456"


def line_of(message: str, *arguments: object, **fields: object) -> str:
    record = logging.LogRecord("gateway.test", logging.INFO, "f", 1, message, arguments, None)
    vars(record).update(fields)
    return JsonFormatter().format(record)


def test_a_line_is_json_with_the_fields_of_its_call() -> None:
    line = json.loads(line_of("hello %s", "you", trace_id="abc", tenant="ten_a"))
    assert (line["message"], line["level"], line["trace_id"], line["tenant"]) == (
        "hello you",
        "info",
        "abc",
        "ten_a",
    )


@pytest.mark.parametrize(
    "line",
    [
        line_of("key %s", CANARY),
        line_of("headers", headers={"authorization": f"Bearer {CANARY}"}),
        line_of("x", authorization=f"Bearer {CANARY[3:]}"),
        line_of("id", request_id=f"mine_{CANARY}"),
        line_of("x", headers=[(b"authorization", f"Bearer {CANARY}".encode())]),
    ],
)
def test_keys_are_cut_out_wherever_they_are(line: str) -> None:
    assert CANARY[10:] not in line
    json.loads(line)


def test_keys_are_cut_out_of_tracebacks() -> None:
    try:
        raise ValueError(f"bad key {CANARY}")
    except ValueError:
        line = line_of("failed", exc_info=sys.exc_info())
    assert CANARY not in line
    assert "Traceback" in json.loads(line)["exception"]
