"""Windows, percentiles and breaches."""

import pytest

from engine.core.histogram import LatencyHistogram
from engine.core.slo import MIN_SAMPLES, Judged, SloMonitor, SloReading, SloTargets


def reading(monitor: SloMonitor, name: str, now: float) -> SloReading:
    return next(each for each in monitor.readings(now) if each.name == name)


def judged(monitor: SloMonitor, name: str, now: float) -> Judged:
    return next(each for each in monitor.judged(now) if each.name == name)


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
    monitor.window(1.0).ttft.add(400.0, MIN_SAMPLES)
    assert reading(monitor, "ttft_p95_ms", 2.0).now == pytest.approx(400, rel=0.05)
    later = reading(monitor, "ttft_p95_ms", 60.0)
    assert later.now is None
    assert later.five_minutes == pytest.approx(400, rel=0.05)
    assert later.minutes_in_breach == 1
    assert reading(monitor, "ttft_p95_ms", 400.0).five_minutes is None
    assert reading(monitor, "ttft_p95_ms", 400.0).minutes_in_breach == 1


def test_an_hour_later_a_breach_is_forgotten() -> None:
    monitor = SloMonitor(SloTargets(ttft_p95_ms=100), now=0.0)
    monitor.window(1.0).ttft.add(400.0, MIN_SAMPLES)
    for second in range(10, 3700, 10):
        monitor.window(float(second))
    assert reading(monitor, "ttft_p95_ms", 3700.0).minutes_in_breach == 0


def test_the_share_of_refused_requests_is_read_against_its_target() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    window = monitor.window(1.0)
    window.num_admitted, window.num_refused = 18, 2
    assert reading(monitor, "admission_reject_rate_max", 2.0).now == pytest.approx(0.1)
    assert reading(monitor, "admission_reject_rate_max", 15.0).minutes_in_breach == 1


def test_the_window_slides_by_the_second() -> None:
    monitor = SloMonitor(SloTargets(), now=0.5)
    for second in range(30):
        monitor.window(second + 0.7).ttft.add(1000.0 if second < 5 else 10.0)
        seen = judged(monitor, "ttft_p95_ms", second + 0.8)
        assert seen.num_samples == min(second + 1, 10)
        assert (seen.value or 0) > 900 or second >= 14, "the slow ones are within the last ten seconds"
    assert judged(monitor, "ttft_p95_ms", 30.0).value == pytest.approx(10, rel=0.05)


def test_ten_seconds_after_the_last_slow_answer_nothing_of_it_is_left() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.window(3.9).ttft.add(5000.0, 100)
    assert judged(monitor, "ttft_p95_ms", 12.9).value is not None
    assert judged(monitor, "ttft_p95_ms", 13.0).value is None


def test_what_was_measured_lately_is_told_apart() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.window(0.1).itl.add(900.0, 50)
    monitor.window(2.1).itl.add(30.0, 50)
    assert judged(monitor, "itl_p95_ms", 2.5).latest == pytest.approx(900, rel=0.05)
    assert judged(monitor, "itl_p95_ms", 3.5).latest == pytest.approx(30, rel=0.05)
    assert judged(monitor, "itl_p95_ms", 3.5).value == pytest.approx(900, rel=0.05)


def test_five_minutes_slide_too() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    for second in range(700):
        monitor.window(second + 0.5).ttft.add(1000.0 if second < 300 else 10.0)
    assert reading(monitor, "ttft_p95_ms", 580.0).five_minutes == pytest.approx(10, rel=0.05)


def test_nineteen_slow_answers_are_no_breach_and_twenty_are() -> None:
    monitor = SloMonitor(SloTargets(ttft_p95_ms=100), now=0.0)
    monitor.window(0.5).ttft.add(400.0, 19)
    assert judged(monitor, "ttft_p95_ms", 0.6).share == 0
    monitor.window(0.7).ttft.add(400.0)
    assert judged(monitor, "ttft_p95_ms", 0.8).share == pytest.approx(4, rel=0.05)


def test_the_caches_utilisation_is_a_gauge_and_needs_no_twenty_samples() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.window(0.5).kv_cache_utilization = 0.96
    assert judged(monitor, "kv_cache_utilization_max", 5.0).share > 1
    assert judged(monitor, "kv_cache_utilization_max", 10.0).share == 0


def test_rejections_are_judged_among_all_that_were_answered() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    window = monitor.window(0.5)
    window.num_admitted, window.num_refused = 15, 5
    seen = judged(monitor, "admission_reject_rate_max", 1.0)
    assert (seen.value, seen.num_samples) == (0.25, 20)


def test_a_total_stall_breaches_although_nobody_is_admitted() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    for second in range(13):
        monitor.note_waiting_age(second + 0.5, oldest_seconds=second - 1.5)
    seen = judged(monitor, "queue_wait_p95_ms", 12.6)
    assert seen.share > 1
    assert seen.value == 10_500


def test_many_that_wait_too_long_breach_before_the_first_of_them_is_served() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.window(0.5).queue_wait.add(5.0, 100)
    monitor.note_waiting_age(1.0, oldest_seconds=0.9, num_late=30)
    assert judged(monitor, "queue_wait_p95_ms", 1.1).value == pytest.approx(900, rel=0.05)


def test_one_that_waits_long_beside_many_served_is_no_breach() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.window(0.5).queue_wait.add(5.0, 100)
    monitor.note_waiting_age(1.0, oldest_seconds=20.0, num_late=1)
    assert judged(monitor, "queue_wait_p95_ms", 1.1).share < 1


def test_who_no_longer_waits_is_no_longer_judged() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.note_waiting_age(1.0, oldest_seconds=30.0, num_late=50)
    monitor.note_waiting_age(2.0, oldest_seconds=0.0)
    assert judged(monitor, "queue_wait_p95_ms", 2.1).value is None


def test_what_was_told_of_waiting_is_forgotten_when_the_loop_tells_nothing_more() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.note_waiting_age(1.0, oldest_seconds=30.0, num_late=50)
    assert judged(monitor, "queue_wait_p95_ms", 11.0).value is None


def test_after_a_pause_of_the_clock_old_seconds_are_gone() -> None:
    monitor = SloMonitor(SloTargets(), now=0.0)
    monitor.window(0.5).ttft.add(5000.0, 100)
    assert judged(monitor, "ttft_p95_ms", 5000.3).value is None
    assert reading(monitor, "ttft_p95_ms", 5000.4).five_minutes is None
