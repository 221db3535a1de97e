"""Figures as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from admin_ui.charts import sparkline, stacked
from admin_ui.formatting import (
    Unit,
    duration,
    measured,
    milliseconds,
    num_bytes,
    percent,
    rate,
    since,
    slo_name,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def plain(text: str) -> str:
    return text.replace("\u2009", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0 ms"),
        (8.44, "8.4 ms"),
        (128.4, "128 ms"),
        (1520.0, "1.52 s"),
        (15_200.0, "15.2 s"),
        (300_000.0, "300 s"),
    ],
)
def test_milliseconds_keep_three_digits(value: float, text: str) -> None:
    assert plain(milliseconds(value)) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.0123, "1.2 %"), (0.824, "82.4 %"), (1.0, "100 %")]
)
def test_a_share_is_per_cent(share: float, text: str) -> None:
    assert plain(percent(share)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3_599, "59 min"),
        (11_100, "3 h 5 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert plain(duration(seconds)) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (12.34, "12.3"), (1234.5, "1,234")])
def test_a_rate_has_a_decimal_while_it_is_small(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (9_960, "10 kB"),
        (999_700, "1.0 MB"),
        (200_000_000, "200 MB"),
        (5_000_000_000_000, "5000 GB"),
    ],
)
def test_a_size_has_a_unit_that_fits(size: int, text: str) -> None:
    assert plain(num_bytes(size)) == text


@pytest.mark.parametrize(
    ("ago", "text"),
    [
        (timedelta(seconds=5), "Just now"),
        (timedelta(minutes=3), "3 min ago"),
        (timedelta(days=30), "30 Jan 2026"),
    ],
)
def test_a_moment_is_told_by_its_distance(ago: timedelta, text: str) -> None:
    assert plain(since(NOW - ago, now=NOW)) == text


def test_what_never_was_is_never() -> None:
    assert since(None, now=NOW) == "Never"


def test_nothing_measured_is_a_dash() -> None:
    assert measured(None, Unit.MILLISECONDS) == "–"


def test_an_unknown_service_level_stands_for_itself() -> None:
    name = slo_name("prefill_p95_ms")
    assert (name.title, name.measure, name.unit) == ("Prefill", "p95", Unit.MILLISECONDS)


def test_a_line_needs_two_points() -> None:
    assert sparkline([(0.0, 1.0)], now=0.0, window_seconds=300, ceiling=1.0).line == ""


def test_a_line_ends_at_the_right_edge_with_the_newest_point() -> None:
    shape = sparkline([(-300.0, 0.0), (0.0, 2.0)], now=0.0, window_seconds=300, ceiling=2.0)
    assert shape.line == "M0.0,59.0L300.0,3.0"


def test_parts_of_a_bar_lie_end_to_end() -> None:
    assert [(bar.start, bar.width) for bar in stacked((1, 1, 2))] == [(0.0, 25.0), (25.0, 25.0), (50.0, 50.0)]


def test_a_bar_of_nothing_is_empty() -> None:
    assert [bar.width for bar in stacked((0, 0))] == [0.0, 0.0]
