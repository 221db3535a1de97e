"""What fails in a step ends the request that it belongs to; the others' answers are whole."""

import pytest

from engine.core.outcome import Broken, Ended
from engine.core.sequence import EndReason, Sequence
from engine.core.step import StepPlan, StepResult
from engine.errors import StepsFailed
from engine.loop import MAX_FAILED_STEPS
from tests.builders.loops import LettersRunner, SteppedLoop, stepped_loop
from tests.builders.sequences import expected_output, scheduler, sequence


class Poisoned(LettersRunner):
    """Fails every step with a row of one of these sequences that has got so far."""

    def __init__(self, ids: set[str], *, from_position: int = 0) -> None:
        super().__init__()
        self._ids = ids
        self._from_position = from_position

    def collect(self, in_flight: StepPlan) -> StepResult:
        for row in in_flight.rows:
            if row.sequence_id in self._ids and row.start >= self._from_position:
                raise RuntimeError(f"cannot compute {row.sequence_id}")
        return super().collect(in_flight)


def beside_others(runner: LettersRunner) -> tuple[SteppedLoop, list[Sequence]]:
    """Three requests that have been running for a while."""
    loop = stepped_loop(scheduler(num_blocks=128), runner)
    others = [sequence(f"other{index}", tenant=f"t{index}", max_tokens=20) for index in range(3)]
    loop.submit(*others)
    loop.steps(5)
    return loop, others


def assert_whole(loop: SteppedLoop, others: list[Sequence]) -> None:
    for each in others:
        end = loop.last_of(each.id)
        assert isinstance(end, Ended), end
        assert end.reason is EndReason.LENGTH
        assert loop.output_of(each.id) == expected_output(each)


def test_a_newcomer_that_poisons_its_step_fails_alone() -> None:
    loop, others = beside_others(Poisoned({"newcomer"}))
    loop.submit(sequence("newcomer", tenant="new", arrived_at=1.0))
    loop.run_until_idle()
    end = loop.last_of("newcomer")
    assert isinstance(end, Broken)
    assert "cannot compute newcomer" in end.error
    assert_whole(loop, others)


def test_the_step_is_tried_again_once_and_computes_everything_but_the_newcomer() -> None:
    runner = Poisoned({"newcomer"})
    loop, _ = beside_others(runner)
    loop.submit(sequence("newcomer", tenant="new", arrived_at=1.0))
    before = len(runner.plans)
    loop.steps(1)
    failed, again = runner.plans[before:]
    assert {row.sequence_id for row in failed.rows} == {"newcomer", "other0", "other1", "other2"}
    assert again.rows == tuple(row for row in failed.rows if row.sequence_id != "newcomer")
    assert again.step_id == failed.step_id


def test_the_newest_is_suspected_when_a_step_without_newcomers_fails() -> None:
    loop, others = beside_others(Poisoned({"late"}, from_position=8))
    loop.submit(sequence("late", tenant="new", max_tokens=20, arrived_at=1.0))
    loop.run_until_idle()
    assert isinstance(loop.last_of("late"), Broken)
    assert loop.output_of("late") == [101, 102, 103, 104, 105]
    assert_whole(loop, others)


def test_when_the_step_fails_without_its_newest_too_its_members_end_and_the_engine_goes_on() -> None:
    loop, others = beside_others(Poisoned({"other0"}, from_position=10))
    loop.steps(10)
    for each in others:
        assert isinstance(loop.last_of(each.id), Broken)
    later = sequence("later", arrived_at=2.0)
    loop.submit(later)
    loop.run_until_idle()
    assert_whole(loop, [later])


def test_blocks_of_what_failed_are_free() -> None:
    engine = scheduler()
    loop = stepped_loop(engine, Poisoned({"a", "b"}))
    loop.submit(sequence("a"), sequence("b", num_prompt_tokens=40))
    loop.run_until_idle()
    assert engine.kv_cache.num_used_blocks == 0
    engine.check_integrity()


def test_steps_that_fail_whoever_is_in_them_end_the_process() -> None:
    loop = stepped_loop(scheduler(), Poisoned({f"s{index}" for index in range(MAX_FAILED_STEPS)}))
    for index in range(MAX_FAILED_STEPS - 1):
        loop.submit(sequence(f"s{index}"))
        loop.steps(1)
    loop.submit(sequence(f"s{MAX_FAILED_STEPS - 1}"))
    with pytest.raises(StepsFailed, match="cannot compute"):
        loop.steps(1)


def test_many_poisonous_requests_with_good_ones_between_do_not_end_the_process() -> None:
    """It is the requests' fault and not the device's."""
    loop = stepped_loop(scheduler(), Poisoned({f"bad{index}" for index in range(3 * MAX_FAILED_STEPS)}))
    good = [sequence(f"good{index}", max_tokens=2) for index in range(3 * MAX_FAILED_STEPS)]
    for index, each in enumerate(good):
        loop.submit(sequence(f"bad{index}"))
        loop.steps(1)
        loop.submit(each)
        loop.steps(2)
    assert_whole(loop, good)


def test_an_error_in_one_rows_result_ends_that_request_alone() -> None:
    class NotANumber(LettersRunner):
        def collect(self, in_flight: StepPlan) -> StepResult:
            result = super().collect(in_flight)
            errors = {id: "not a number" for id in result.sampled if id == "bad"}
            return StepResult(step_id=result.step_id, sampled=result.sampled, errors=errors)

    loop, others = beside_others(NotANumber())
    loop.submit(sequence("bad", tenant="new", arrived_at=1.0))
    loop.run_until_idle()
    end = loop.last_of("bad")
    assert isinstance(end, Broken)
    assert end.error == "not a number"
    assert_whole(loop, others)


def test_an_exception_in_one_requests_bookkeeping_ends_that_request_alone() -> None:
    """vllm#47312: an exception of one request escaped the scheduler and took down all of them."""

    class Unhashable(LettersRunner):
        def collect(self, in_flight: StepPlan) -> StepResult:
            result = super().collect(in_flight)
            broken = {id: ([],) for id in result.sampled if id == "bad"}
            return StepResult(step_id=result.step_id, sampled={**result.sampled, **broken})  # type: ignore[dict-item]

    loop, others = beside_others(Unhashable())
    loop.submit(sequence("bad", tenant="new", arrived_at=1.0))
    loop.run_until_idle()
    end = loop.last_of("bad")
    assert isinstance(end, Broken)
    assert "bookkeeping failed" in end.error
    assert_whole(loop, others)
