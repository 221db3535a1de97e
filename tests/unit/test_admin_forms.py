"""Texts that people type, read into values."""

from datetime import UTC, datetime

import pytest

from admin_ui.forms import FieldError, parse_expiry, parse_limit, parse_name

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "limit"), [("", None), ("  ", None), ("8", 8), ("60,000", 60000), ("60 000", 60000), ("0", 0)]
)
def test_a_limit_is_a_number_or_nothing(text: str, limit: int | None) -> None:
    assert parse_limit({"limit": text}, "limit") == limit


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "1e6", "9" * 40, "1000000000001", "٣"])
def test_another_limit_is_refused_and_named(text: str) -> None:
    with pytest.raises(FieldError) as refused:
        parse_limit({"limit": text}, "limit")
    assert refused.value.field == "limit"


def test_a_name_loses_its_spare_spaces() -> None:
    assert parse_name({"name": "  Acme   Ltd "}, "name", what="tenant") == "Acme Ltd"


@pytest.mark.parametrize("text", ["", "   ", "x" * 65, "a\u202eb"])
def test_an_unusable_name_is_refused(text: str) -> None:
    with pytest.raises(FieldError):
        parse_name({"name": text}, "name", what="tenant")


def test_a_key_works_to_the_end_of_its_last_day() -> None:
    assert parse_expiry({"day": "2026-03-01"}, "day", now=NOW) == datetime(2026, 3, 2, tzinfo=UTC)


def test_no_last_day_is_no_end() -> None:
    assert parse_expiry({}, "day", now=NOW) is None


@pytest.mark.parametrize("text", ["2026-02-28", "tomorrow", "2026-13-01", "9999-12-31"])
def test_an_unusable_last_day_is_refused(text: str) -> None:
    with pytest.raises(FieldError):
        parse_expiry({"day": text}, "day", now=NOW)
