"""A watched batch as a person sees it: rate, what is left, and a bar on a terminal only."""

import io
import time

import pytest
from rich.console import Console

from deploy.batch.pace import Pace
from deploy.batch.views import duration, view_on
from deploy.batch.wire import Batch, Counts, Sighting


def sighting(completed: int, failed: int = 0, *, estimated_end: float | None = None) -> Sighting:
    counts = Counts(total=200, completed=completed, failed=failed)
    batch = Batch(id="batch_1", status="in_progress", request_counts=counts)
    return Sighting(batch=batch, body={}, estimated_end=estimated_end)


def drawn(*seen: Sighting, is_terminal: bool = True) -> str:
    """All that is written while these are seen."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=160)
    with view_on(console) as view:
        for each in seen:
            view.show(each)
    return written.getvalue()


def test_a_bar_tells_state_counts_and_what_failed() -> None:
    text = drawn(sighting(40, 3))
    for part in ("in_progress", "43 of 200", "3 failed"):
        assert part in text


def test_the_server_s_estimate_is_what_is_left() -> None:
    assert "about 2 min left" in drawn(sighting(40, estimated_end=time.time() + 100))


def test_an_estimate_that_is_over_is_nothing_left() -> None:
    assert "about 0 s left" in drawn(sighting(40, estimated_end=time.time() - 100))


def test_what_is_no_terminal_gets_no_control_codes() -> None:
    assert drawn(sighting(40), is_terminal=False) == "in_progress: 40 of 200 done\n"


def test_a_long_batch_is_a_line_a_per_cent_at_most() -> None:
    text = drawn(*(sighting(done) for done in range(200)), is_terminal=False)
    assert len(text.splitlines()) == 100


def test_a_pace_is_that_of_the_last_half_minute() -> None:
    pace = Pace()
    for second in range(100):
        pace.note(float(second), 0 if second < 50 else (second - 50) * 10)
    assert pace.items_per_second() == 10.0
    assert pace.seconds_left(50) == 5.0


def test_one_look_tells_no_pace() -> None:
    pace = Pace()
    pace.note(1.0, 5)
    assert (pace.items_per_second(), pace.seconds_left(10)) == (None, None)


def test_what_stands_still_has_no_end() -> None:
    pace = Pace()
    pace.note(1.0, 5)
    pace.note(2.0, 5)
    assert (pace.items_per_second(), pace.seconds_left(10)) == (0.0, None)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "1 s"), (59.2, "60 s"), (61, "2 min"), (3_600, "1 h 0 min")]
)
def test_a_duration_is_rounded_up(seconds: float, text: str) -> None:
    assert duration(seconds) == text
