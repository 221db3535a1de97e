"""Windows, percentiles and breaches."""

import pytest

from engine.core.slo import LatencyHistogram, SloMonitor, SloReading, SloTargets


def reading(monitor: SloMonitor, name: str, now: float) -> SloReading:
    return next(each for each in monitor.readings(now) if each.name == name)


@pytest.mark.parametrize("value", [0.3, 1.0, 17.0, 119.0, 5000.0])
def test_a_percentile_is_right_within_five_percent(value: float) -> None:
    histogram = LatencyHistogram()
    for _ in range(100):
        histogram.add(value)
    assert histogram.quantile(0.95) == pytest.approx(value, rel=0.05)


def test_percentiles_of_merged_histograms_are_those_of_all_samples() -> None:
    parts, whole = [LatencyHistogram(), LatencyHistogram()], LatencyHistogram()
    for index in range(200):
        parts[index % 2].add(float(index))
        whole.add(float(index))
    parts[0].merge(parts[1])
    assert parts[0].quantile(0.95) == whole.quantile(0.95)


def test_nothing_measured_is_none_and_no_breach() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    empty = reading(monitor, "ttft_p95_ms", 1.0)
    assert (empty.now, empty.five_minutes, empty.minutes_in_breach) == (None, None, 0)


def test_a_breach_shows_now_then_over_five_minutes_then_in_the_hour() -> None:
    monitor = SloMonitor(SloTargets(ttft_p95_ms=100), now=0.0)
    monitor.window(1.0).ttft.add(400.0)
    assert reading(monitor, "ttft_p95_ms", 2.0).now == pytest.approx(400, rel=0.05)
    later = reading(monitor, "ttft_p95_ms", 60.0)
    assert later.now is None
    assert later.five_minutes == pytest.approx(400, rel=0.05)
    assert later.minutes_in_breach == 1
    assert reading(monitor, "ttft_p95_ms", 400.0).five_minutes is None
    assert reading(monitor, "ttft_p95_ms", 400.0).minutes_in_breach == 1


def test_an_hour_later_a_breach_is_forgotten() -> None:
    monitor = SloMonitor(SloTargets(ttft_p95_ms=100), now=0.0)
    monitor.window(1.0).ttft.add(400.0)
    for second in range(10, 3700, 10):
        monitor.window(float(second))
    assert reading(monitor, "ttft_p95_ms", 3700.0).minutes_in_breach == 0


def test_the_share_of_refused_requests_is_read_against_its_target() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    window = monitor.window(1.0)
    window.num_admitted, window.num_refused = 9, 1
    assert reading(monitor, "admission_reject_rate_max", 2.0).now == pytest.approx(0.1)
    assert reading(monitor, "admission_reject_rate_max", 15.0).minutes_in_breach == 1
