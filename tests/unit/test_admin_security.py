"""Where forms may come from, where redirects may go, and what a one-time secret is."""

import pytest

from admin_ui.reveals import SHOWN_WITHIN_SECONDS, Reveals
from admin_ui.security import is_from_own_pages, safe_return_path
from admin_ui.streams import MAX_STREAMS_PER_SESSION, StreamCount

OWN = "https://admin.example"


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"origin": OWN}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": OWN}, True),
        ({}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://admin.example"}, False),
        ({"origin": "https://admin.example:444"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site", "origin": OWN}, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://evil.example"}, False),
    ],
)
def test_a_form_counts_only_from_our_own_pages(headers: dict[str, str], is_own: bool) -> None:
    assert is_from_own_pages(headers, own_origin=OWN) is is_own


@pytest.mark.parametrize("path", ["/", "/tenants", "/keys?tenant=ten_1"])
def test_a_path_of_ours_may_be_returned_to(path: str) -> None:
    assert safe_return_path(path) == path


@pytest.mark.parametrize(
    "path",
    [None, "", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nSet-Cookie: x", "/é"],
)
def test_anything_else_leads_to_the_first_page(path: str | None) -> None:
    assert safe_return_path(path) == "/"


def test_a_secret_is_shown_once() -> None:
    reveals = Reveals()
    reveals.hold(operator_id="op_1", key_id="k", secret="sk-1")
    assert [reveals.take(operator_id="op_1", key_id="k") for _ in range(2)] == ["sk-1", None]


def test_a_secret_is_not_shown_to_another_operator() -> None:
    reveals = Reveals()
    reveals.hold(operator_id="op_1", key_id="k", secret="sk-1")
    assert reveals.take(operator_id="op_2", key_id="k") is None


def test_a_secret_is_not_shown_late() -> None:
    now = [0.0]
    reveals = Reveals(lambda: now[0])
    reveals.hold(operator_id="op_1", key_id="k", secret="sk-1")
    now[0] = SHOWN_WITHIN_SECONDS
    assert reveals.take(operator_id="op_1", key_id="k") is None


def test_a_session_s_streams_are_counted_and_given_back() -> None:
    streams = StreamCount()
    contexts = [streams.opened("session") for _ in range(MAX_STREAMS_PER_SESSION)]
    for context in contexts:
        context.__enter__()
    was_full = streams.is_full("session")
    contexts[0].__exit__(None, None, None)
    assert (was_full, streams.is_full("session"), streams.is_full("another")) == (True, False, False)
