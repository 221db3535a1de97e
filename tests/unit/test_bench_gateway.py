"""The gateway's bench: what it decides from charges and spans, and how it reads answers and keeps time."""

import asyncio

import pytest

from tests.benchmarks.gateway.exchange import CUT, UNANSWERED, Exchange, Leave, Leaving, Seen, Shot
from tests.benchmarks.gateway.gauges import gauges_of
from tests.benchmarks.gateway.http_request import chat
from tests.benchmarks.gateway.invariants import (
    delivery,
    growth,
    most_at_once,
    num_charged_twice,
    worst_use,
)
from tests.benchmarks.gateway.soak import Drift
from tests.benchmarks.gateway.speed import (
    NothingComplete,
    added,
    answer_times,
    first_text_times,
    num_failed,
    rate,
    what_failed,
)
from tests.benchmarks.gateway.timer import Pace, Timer

FRAME = b'data: {"id":"cmpl-7","choices":[{"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"cmpl-7","choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'


def begun(*, leave: Leave | None = None) -> tuple[Exchange, list[Seen]]:
    """An exchange due at 1.0, and where what came of it will be."""
    seen = list[Seen]()
    exchange = Exchange(Shot(request=chat("key", num_tokens=4), leave=leave), 1.0, seen.append)
    exchange.status, exchange.is_stream = 200, True
    return exchange, seen


def answered(*, due_at: float = 0.0, seconds: float = 0.1, error: str | None = None) -> Seen:
    """One request, sent when it was due."""
    return Seen(
        tag="", due_at=due_at, started_at=due_at, ended_at=due_at + seconds,
        first_text_at=due_at + seconds / 2, error=error,
    )  # fmt: skip


# --- invariants ------------------------------------------------------------------------------------------


def test_spans_that_touch_do_not_overlap() -> None:
    assert most_at_once([(0.0, 1.0), (1.0, 2.0)]) == 1


def test_the_most_crowded_moment_counts() -> None:
    assert most_at_once([(0.0, 3.0), (1.0, 4.0), (2.0, 2.5), (5.0, 6.0)]) == 3


def test_a_bucket_spent_at_once_is_used_to_its_capacity() -> None:
    assert worst_use([(0.0, 60), (0.0, 40)], refill_per_second=1.0) == 100


def test_what_was_refilled_meanwhile_is_no_overshoot() -> None:
    assert worst_use([(0.0, 100), (10.0, 10)], refill_per_second=1.0) == 100


def test_a_rest_gives_no_more_than_the_bucket_holds() -> None:
    assert worst_use([(0.0, 10), (1_000.0, 100), (1_000.5, 50)], refill_per_second=1.0) == 149.5


def test_uses_may_come_in_any_order() -> None:
    assert worst_use([(10.0, 20), (0.0, 100)], refill_per_second=1.0) == 110


def test_one_request_charged_too_little_is_not_hidden_by_another_charged_too_much() -> None:
    found = delivery({"a": 10, "b": 10}, {"a": 4, "b": 90})

    assert (found.num_requests_short, found.num_tokens_short) == (1, 6)


def test_a_request_without_a_charge_is_short_of_all_it_delivered() -> None:
    assert delivery({"a": 10}, {}).num_tokens_short == 10


def test_two_rows_of_one_request_are_one_double_charge() -> None:
    assert num_charged_twice(["a", "b", "a", "a"]) == 1


def test_growth_compares_thirds_and_leaves_out_the_warm_up() -> None:
    assert growth([1.0, 1.0, 100.0, 100.0, 100.0, 103.0, 104.0, 105.0], num_warm=2) == pytest.approx(0.045)


def test_too_few_looks_show_no_growth() -> None:
    assert growth([1.0, 9.0], num_warm=0) == 0.0


# --- figures of speed ------------------------------------------------------------------------------------


def test_a_request_that_was_sent_late_is_late() -> None:
    late = Seen(tag="", due_at=0.0, started_at=5.0, ended_at=5.1)

    assert answer_times([late]).p50 == pytest.approx(5_100)


def test_what_is_added_is_the_difference_of_percentiles() -> None:
    direct = answer_times([answered(seconds=0.1)] * 3)
    through = answer_times([answered(seconds=0.102)] * 3)

    assert added(through, direct).p99 == pytest.approx(2.0)


def test_only_whole_answers_are_timed_and_counted() -> None:
    seen = [answered(), answered(seconds=9.0, error=CUT), answered(due_at=1.0)]

    assert answer_times(seen).count == 2
    assert first_text_times(seen).max == pytest.approx(50)
    assert (num_failed(seen), what_failed(seen)) == (1, f"1 {CUT}")


def test_the_rate_is_over_the_time_that_all_of_it_took() -> None:
    assert rate([answered(), answered(due_at=1.9)]) == pytest.approx(1.0)


def test_nothing_to_time_says_what_came_instead() -> None:
    with pytest.raises(NothingComplete, match="2 http_503"):
        answer_times([answered(error="http_503")] * 2)


# --- an exchange -----------------------------------------------------------------------------------------


def test_a_stream_is_read_across_the_reads_that_it_came_in() -> None:
    exchange, seen = begun()
    bytes_ = FRAME % b"ab" + FRAME % b"c" + LAST
    exchange.take(bytes_[:50], 1.5)
    exchange.take(bytes_[50:100], 1.6)
    exchange.take(bytes_[100:], 1.8)
    exchange.complete(2.0)

    (one,) = seen
    assert one.is_complete
    assert (one.generation_id, one.num_tokens) == ("cmpl-7", 3)
    assert one.first_text_latency == pytest.approx(0.6)
    assert one.gaps == pytest.approx((0.2,))


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    exchange, seen = begun()
    exchange.take(FRAME % b"ab", 1.5)
    exchange.complete(1.6)

    assert seen[0].error == "stream_cut"


def test_an_exchange_ends_once_even_if_its_connection_is_lost_later() -> None:
    exchange, seen = begun()
    exchange.give_up(9.0)
    exchange.lose(9.5)

    assert [one.error for one in seen] == [UNANSWERED]


def test_a_client_leaves_with_the_tokens_that_it_wanted() -> None:
    exchange, seen = begun(leave=Leave(how=Leaving.RESET, with_tokens=2))
    exchange.take(FRAME % b"a", 1.5)
    assert not exchange.wants_to_leave
    exchange.take(FRAME % b"b", 1.6)
    assert exchange.wants_to_leave
    exchange.leave(1.6)

    assert (seen[0].has_left, seen[0].num_tokens, seen[0].error) == (True, 2, None)


def test_a_whole_answer_tells_its_id_and_tokens() -> None:
    exchange, seen = begun()
    exchange.is_stream = False
    exchange.take(b'{"id":"cmpl-9","usage":{"prompt_tokens":5,"completion_tokens":4}}', 1.5)
    exchange.complete(1.5)

    assert (seen[0].generation_id, seen[0].num_prompt_tokens, seen[0].num_tokens) == ("cmpl-9", 5, 4)


def test_a_refusal_is_told_by_its_code() -> None:
    exchange, seen = begun()
    exchange.status, exchange.is_stream = 429, False
    exchange.take(b'{"error":{"code":"rate_limit_exceeded"}}', 1.5)
    exchange.complete(1.5)

    assert (seen[0].status, seen[0].error) == (429, "rate_limit_exceeded")


# --- gauges ----------------------------------------------------------------------------------------------


def test_gauges_are_told_apart_by_their_labels() -> None:
    page = '# TYPE a gauge\na{x="1"} 2\na{x="2"} 3\n# TYPE b counter\nb_total 9\n'

    assert gauges_of(page) == {'a{x="1"}': 2, 'a{x="2"}': 3}


def test_a_gauge_that_has_nothing_to_say_again_has_not_drifted() -> None:
    assert not Drift(name="fairness", before=float("nan"), after=float("nan")).has_drifted


def test_blocks_that_a_cache_keeps_have_not_drifted_but_used_ones_have() -> None:
    assert not Drift(name='kv_blocks{state="cached"}', before=0, after=5).has_drifted
    assert Drift(name='kv_blocks{state="used"}', before=0, after=5).has_drifted


# --- the timer -------------------------------------------------------------------------------------------


async def test_without_a_beat_the_whole_answer_is_due_at_once() -> None:
    emitted = asyncio.Queue[tuple[int, bool]]()
    Timer(Pace(first_seconds=0.0)).begin(4, lambda count, is_last: emitted.put_nowait((count, is_last)))

    assert await emitted.get() == (4, True)


async def test_with_a_beat_tokens_are_due_one_by_one() -> None:
    emitted = asyncio.Queue[tuple[int, bool]]()
    timer = Timer(Pace(first_seconds=0.001, token_seconds=0.001))
    timer.begin(3, lambda count, is_last: emitted.put_nowait((count, is_last)))

    assert [await emitted.get() for _ in range(3)] == [(1, False), (1, False), (1, True)]


async def test_a_cancelled_answer_gets_nothing_more_and_others_go_on() -> None:
    emitted = asyncio.Queue[str]()
    timer = Timer(Pace(first_seconds=0.0, token_seconds=0.001))
    cancelled = timer.begin(1_000, lambda *_: emitted.put_nowait("cancelled"))
    timer.begin(3, lambda _, is_last: emitted.put_nowait("last" if is_last else "more"))
    timer.cancel(cancelled)

    assert [await emitted.get() for _ in range(3)] == ["more", "more", "last"]
