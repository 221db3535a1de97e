"""What a tenant gets in the engine, its projects and keys share by weight."""

from collections import Counter

from engine.core.lines import Part, Path
from engine.core.scheduler import Scheduler
from tests.builders.sequences import scheduler, sequence, step, submit

LIGHT: Path = Part("p"), Part("light", 1.0)
HEAVY: Path = Part("p"), Part("heavy", 3.0)
MANY = 40


def backlog(*members: Path, num_prompt_tokens: int = 4, **limits: object) -> Scheduler:
    """A scheduler in which so many of each wait, all of one tenant; the first ones came first."""
    engine = scheduler(**limits)
    for member in members:
        for number in range(MANY):
            new = sequence(f"{member[-1].name}{number:02}", num_prompt_tokens=num_prompt_tokens)
            new.within = member
            assert submit(engine, new) is None
    return engine


def served(engine: Scheduler, num_steps: int) -> Counter[str]:
    """Rows by the key that they were computed for."""
    rows: Counter[str] = Counter()
    for _ in range(num_steps):
        plan, _ = step(engine)
        assert plan is not None
        rows.update(row.sequence_id[:-2] for row in plan.rows)
    return rows


def test_a_key_of_thrice_the_weight_gets_three_for_one() -> None:
    rows = served(backlog(LIGHT, HEAVY), 40)
    assert 2.5 <= rows["heavy"] / rows["light"] <= 3.5


def test_long_prompts_of_a_heavy_key_get_three_for_one_too() -> None:
    rows = served(backlog(LIGHT, HEAVY, num_prompt_tokens=20, num_blocks=256), 60)
    assert 2.3 <= rows["heavy"] / rows["light"] <= 3.7


def test_a_projects_weight_counts_before_those_of_its_keys() -> None:
    crowd = tuple((Part("crowd"), Part(f"c{number}", 5.0)) for number in range(4))
    rows = served(backlog(*crowd, (Part("alone"), Part("single"))), 60)
    assert 0.8 <= rows["single"] / sum(rows[f"c{number}"] for number in range(4)) <= 1.25


def test_a_key_whose_request_cannot_run_now_leaves_the_turn_to_another() -> None:
    engine = scheduler(num_blocks=256, long_context_threshold=6, max_num_long_context_seqs=1)
    small = [sequence(f"small{number}", max_tokens=2) for number in range(2)]
    big = [sequence(f"big{number}", num_prompt_tokens=7, max_tokens=40) for number in range(4)]
    for each in small + big:
        each.within = (Part("p"), Part("big", 100.0)) if each in big else LIGHT
        assert submit(engine, each) is None
    for _ in range(8):
        step(engine)
    assert [each.scheduled_at is not None for each in big] == [True, False, False, False]
    assert all(each.scheduled_at is not None for each in small)
