"""Short prompts beside long ones when a step has hardly any room for prompts."""

from tests.builders.sequences import run_until_idle, scheduler, sequence, step, submit


def planned(engine) -> dict[str, int]:
    plan, _ = step(engine)
    return {} if plan is None else {row.sequence_id: len(row.token_ids) for row in plan.rows}


def test_a_short_prompt_goes_on_while_a_long_one_waits_for_a_seat() -> None:
    engine = scheduler(max_num_seqs=1, max_num_prefill_tokens=2)
    submit(engine, sequence("short", num_prompt_tokens=8))
    assert planned(engine) == {"short": 2}
    submit(engine, sequence("long", num_prompt_tokens=20))
    assert planned(engine) == {"short": 2}
    run_until_idle(engine)


def test_a_long_prompt_leaves_short_ones_half_of_a_step_that_is_narrow() -> None:
    engine = scheduler(max_num_prefill_tokens=2)
    submit(engine, sequence("long", num_prompt_tokens=60))
    assert planned(engine) == {"long": 2}
    submit(engine, sequence("short", num_prompt_tokens=4))
    assert planned(engine) == {"short": 1, "long": 1}


def test_a_long_prompt_moves_on_although_short_ones_take_a_step_of_one_token() -> None:
    engine = scheduler(max_num_prefill_tokens=1, max_num_seqs=8, max_num_batched_tokens=16)
    submit(engine, sequence("long", num_prompt_tokens=60))
    planned(engine)
    submit(engine, sequence("short", num_prompt_tokens=8))
    assert "long" in [id for _ in range(8) for id in planned(engine)]


def test_what_is_kept_for_a_long_prompt_that_does_not_come_goes_to_short_ones() -> None:
    engine = scheduler(max_num_seqs=1, max_num_prefill_tokens=8)
    submit(engine, sequence("first", num_prompt_tokens=8))
    submit(engine, sequence("long", num_prompt_tokens=20))
    assert planned(engine) == {"first": 8}
