"""Offline work beside people who would take everything."""

from engine.core.sequence import SequenceClass
from tests.builders.sequences import scheduler, sequence, step, submit


def share_of_offline(**limits: object) -> float:
    """Which part of all charged tokens offline work got while eight people asked without end."""
    engine = scheduler(num_blocks=512, max_num_seqs=8, max_num_batched_tokens=32, **limits)
    submit(engine, sequence("job", tenant="jobs", offline=True, num_prompt_tokens=60, max_tokens=60))
    number = 0
    for now in range(400):
        while engine.num_waiting(SequenceClass.INTERACTIVE) < 4:
            number += 1
            submit(engine, sequence(f"p{number}", num_prompt_tokens=12, max_tokens=8, arrived_at=float(now)))
        step(engine, float(now))
        if not engine.num_running(SequenceClass.OFFLINE) and not engine.num_waiting(SequenceClass.OFFLINE):
            number += 1
            job = sequence(f"job{number}", tenant="jobs", offline=True, num_prompt_tokens=60, max_tokens=60)
            job.arrived_at = float(now)
            submit(engine, job)
    offline = engine.service(SequenceClass.OFFLINE)
    return offline / (offline + engine.service(SequenceClass.INTERACTIVE))


def test_offline_work_has_its_floor_while_people_take_every_seat_and_token() -> None:
    assert share_of_offline(offline_min_share=0.1) > 0.08


def test_without_a_floor_people_may_take_everything() -> None:
    assert share_of_offline(offline_min_share=0.0) == 0.0


def test_what_is_kept_for_offline_work_that_finds_no_seat_goes_to_a_prompt() -> None:
    engine = scheduler(
        num_blocks=512,
        max_num_seqs=1,
        max_num_prefill_tokens=16,
        prefill_chunk_size=16,
        offline_min_share=0.5,
    )
    submit(engine, sequence("prompt", num_prompt_tokens=100, max_tokens=8))
    submit(engine, sequence("job", tenant="jobs", offline=True, num_prompt_tokens=60, max_tokens=60))
    for now in range(6):
        plan, _ = step(engine, float(now))
        assert plan is not None
        assert plan.num_tokens == 16
