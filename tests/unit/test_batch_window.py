"""How long a batch may take, as its owner writes it."""

from datetime import timedelta

import pytest

from gateway.batches.window import window_of


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("24h", timedelta(hours=24)),
        ("1m", timedelta(minutes=1)),
        ("30d", timedelta(days=30)),
        ("720h", timedelta(days=30)),
    ],
)
def test_a_window_is_a_number_of_minutes_hours_or_days(text: str, window: timedelta) -> None:
    assert window_of(text) == window


@pytest.mark.parametrize(
    "text",
    ["", "24", "h", "0m", "01h", "-1h", "1.5h", "24H", " 24h", "24h\n", "31d", "99999999999d", "٣h", "1s"],
)
def test_what_is_no_window_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(ValueError, match="must be '24h'"):
        window_of(text)
