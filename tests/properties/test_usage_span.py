"""Whatever the span: its pieces are all of it, once, and no more minutes than must be."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.usage.span import DAY, Piece, Span, Unit, pieces

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
moments = st.integers(0, 5 * 24 * 60).map(lambda minutes: BEGIN + timedelta(minutes=minutes)) | st.integers(
    0, 5
).map(lambda days: BEGIN + days * DAY)
spans = st.builds(lambda one, other: Span(min(one, other), max(one, other)), moments, moments)


@given(spans)
def test_pieces_follow_one_another_from_end_to_end(span: Span) -> None:
    parts = pieces(span)
    assert parts[0].since == span.since
    assert parts[-1].until == span.until
    assert all(before.until == after.since for before, after in pairwise(parts))


@given(spans)
def test_minutes_are_asked_for_only_where_no_whole_day_fits(span: Span) -> None:
    for part in pieces(span):
        assert part.until is not None
        if part.unit is Unit.DAY:
            assert (part.since - BEGIN) % DAY == (part.until - BEGIN) % DAY == timedelta(0)
        else:
            assert part.until - part.since <= DAY


@given(moments)
def test_a_span_up_to_now_ends_with_days_without_an_end(since: datetime) -> None:
    *minutes, days = pieces(Span(since))
    assert days.unit is Unit.DAY
    assert days.until is None
    assert days.since - since < DAY
    assert minutes == ([Piece(Unit.MINUTE, since, days.since)] if since < days.since else [])


def test_seconds_and_other_time_zones_do_not_matter() -> None:
    west = datetime.fromisoformat("2026-01-01T22:30:45-02:00")
    assert pieces(Span(west))[0].since == datetime(2026, 1, 2, 0, 30, tzinfo=UTC)
