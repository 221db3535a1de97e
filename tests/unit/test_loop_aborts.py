"""Commands that meet a step: an abort before the first one, in the middle of one, of what is unknown."""

from collections.abc import Callable

import pytest

from engine.core.outcome import Ended
from engine.core.sequence import EndReason
from engine.core.step import StepPlan, StepResult
from tests.builders.loops import LettersRunner, SteppedLoop, stepped_loop
from tests.builders.sequences import expected_output, scheduler, sequence


class Interrupted(LettersRunner):
    """Lets something happen while a step is being computed."""

    def __init__(self, happens: Callable[[StepPlan], None]) -> None:
        super().__init__()
        self._happens = happens

    def collect(self, in_flight: StepPlan) -> StepResult:
        self._happens(in_flight)
        return super().collect(in_flight)


def ends_of(loop: SteppedLoop, id: str) -> list[EndReason]:
    return [each.reason for each in loop.outcomes if each.sequence.id == id and isinstance(each, Ended)]


def test_an_abort_that_comes_with_its_request_leaves_nothing_registered() -> None:
    """vllm#57061: a client that left during submission left an entry that was never removed."""
    engine = scheduler()
    loop = stepped_loop(engine, LettersRunner())
    loop.submit(sequence("brief"))
    loop.loop.cancel(None, "brief")
    loop.steps(1)
    assert ends_of(loop, "brief") == [EndReason.CANCELLED]
    assert loop.loop._live == {}
    assert not engine.has_work
    again = sequence("brief", arrived_at=1.0)
    loop.submit(again)  # so the id is free
    loop.run_until_idle()
    assert again.token_ids[4:] == expected_output(again)


def test_a_connection_lost_right_after_its_request_leaves_nothing_registered() -> None:
    loop = stepped_loop(scheduler(), LettersRunner())
    loop.submit(sequence("brief"))
    loop.loop.disown(None)
    loop.steps(1)
    assert ends_of(loop, "brief") == [EndReason.CANCELLED]
    assert loop.loop._live == {}


@pytest.mark.parametrize("abort", ["cancel", "disown"])
def test_an_abort_during_a_step_frees_no_block_that_the_step_still_writes(abort: str) -> None:
    """vllm#45357: blocks were given to others while a launched step still wrote to them."""
    engine = scheduler()
    held: list[tuple[int, int]] = []

    def happens(plan: StepPlan) -> None:
        if plan.step_id == 3:
            if abort == "cancel":
                loop.loop.cancel(None, "doomed")
            else:
                loop.loop.disown(None)
            loop.submit(sequence("next", num_prompt_tokens=8, arrived_at=1.0))
            needed = {block for row in plan.rows for block in row.block_table}
            held.append((len(needed), engine.kv_cache.num_used_blocks))

    loop = stepped_loop(engine, Interrupted(happens))
    loop.submit(sequence("doomed", num_prompt_tokens=8, max_tokens=40))
    loop.steps(3)
    ((needed, used),) = held
    assert used == needed > 0
    loop.steps(1)  # and one step later they are free
    assert ends_of(loop, "doomed") == [EndReason.CANCELLED]
    assert engine.kv_cache.num_used_blocks == 2  # of the next one
    engine.check_integrity()


def test_what_a_step_brings_for_a_request_that_was_cancelled_during_it_comes_before_its_end() -> None:
    """vllm#56089: what came late for an aborted request must neither crash nor follow its end."""

    def happens(plan: StepPlan) -> None:
        loop.loop.cancel(None, "doomed")
        loop.loop.cancel(None, "doomed")

    loop = stepped_loop(scheduler(), Interrupted(happens))
    loop.submit(sequence("doomed", max_tokens=40))
    loop.run_until_idle()
    assert isinstance(loop.outcomes[-1], Ended)
    assert ends_of(loop, "doomed") == [EndReason.CANCELLED]
    assert loop.output_of("doomed") == [101]


def test_aborts_of_what_is_over_or_was_never_there_are_ignored() -> None:
    loop = stepped_loop(scheduler(), LettersRunner())
    loop.submit(sequence("a"))
    loop.run_until_idle()
    for id in ("a", "a", "never there"):
        loop.loop.cancel(None, id)
    other = sequence("b", arrived_at=1.0)
    loop.submit(other)
    loop.run_until_idle()
    assert ends_of(loop, "a") == [EndReason.LENGTH]
    assert other.token_ids[4:] == expected_output(other)


def test_a_second_request_of_an_id_in_use_is_refused_and_the_first_goes_on() -> None:
    loop = stepped_loop(scheduler(), LettersRunner())
    first = sequence("twice", max_tokens=6)
    loop.submit(first)
    loop.steps(1)
    loop.submit(sequence("twice", arrived_at=1.0))
    loop.run_until_idle()
    assert first.token_ids[4:] == expected_output(first)
