"""What the loop saw, as figures: `[slo]` speaks of interactive requests alone."""

import pytest

from engine.core.outcome import Refusal, RefusalReason, Refused
from engine.core.slo import SloMonitor, SloTargets
from engine.telemetry import Telemetry
from tests.builders.sequences import sequence


@pytest.mark.parametrize(("offline", "share"), [(True, None), (False, 1.0)])
def test_offline_work_that_is_refused_breaks_no_promise(offline: bool, share: float | None) -> None:
    telemetry = Telemetry(SloMonitor(SloTargets(), now=0.0))
    refusal = Refusal(RefusalReason.QUEUE_FULL, "full")
    telemetry.record([Refused(sequence(offline=offline), refusal)], now=1.0)
    readings = {reading.name: reading.now for reading in telemetry.monitor.readings(2.0)}
    assert readings["admission_reject_rate_max"] == share
