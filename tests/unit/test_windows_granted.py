"""How many requests each gateway may have at an engine, by class."""

import pytest

from engine.core.rungs import Restrictions, Rung
from engine.self_report import window_of
from tests.builders.scripted_engine import LIMITS


@pytest.mark.parametrize(("num_gateways", "interactive"), [(0, 64), (1, 64), (2, 32), (3, 22)])
def test_gateways_share_twice_the_seats_and_half_as_much_offline(num_gateways: int, interactive: int) -> None:
    window = window_of(LIMITS, Restrictions(level=0), num_gateways=num_gateways)
    assert (window.interactive, window.offline) == (interactive, interactive // 2)


@pytest.mark.parametrize("rung", Rung)
def test_while_offline_work_is_paused_gateways_keep_it(rung: Rung) -> None:
    """It was taken, waited in vain and was refused when its patience ran out."""
    window = window_of(LIMITS, Restrictions(level=rung), num_gateways=1)
    assert window.interactive == 64
    assert (window.offline == 0) == (rung >= Rung.PAUSE_OFFLINE)
