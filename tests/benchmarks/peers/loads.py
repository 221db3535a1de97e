"""The loads that every system gets, and the prompts in them: equal seeds make equal prompts for everybody."""

from dataclasses import dataclass, replace
from typing import Final

from deploy.bench.prompts import PromptMaker
from deploy.bench.workload import ClosedLoad, Tenant, closed_load


@dataclass(frozen=True, kw_only=True)
class Load:
    """So many equal requests, so many at a time; lengths in tokens, answers of exactly that length."""

    name: str
    concurrency: int
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int


WARM_UP: Final = Load(
    name="warm-up", concurrency=32, num_requests=32, num_prompt_tokens=128, num_output_tokens=16
)
C1: Final = Load(name="c1", concurrency=1, num_requests=8, num_prompt_tokens=128, num_output_tokens=64)
C32: Final = Load(name="c32", concurrency=32, num_requests=64, num_prompt_tokens=256, num_output_tokens=128)
LOADS: Final = (C1, C32)


def smoke(load: Load) -> Load:
    """Just enough of `load` to see that a system can carry it."""
    return replace(load, num_requests=min(load.num_requests, load.concurrency, 4), num_output_tokens=8)


def seed_of(run: int, load: Load) -> int:
    """Another one for each run and load, so that no prompt comes twice and no prefix cache helps anybody."""
    return 100 * run + [WARM_UP.name, *(each.name for each in LOADS)].index(load.name)


def prompts(load: Load, seed: int) -> list[list[int]]:
    """The token ids that `sluice bench` sends for this load and seed."""
    maker = PromptMaker(seed=seed)
    return [maker.ids(conversation.turns[0].new_segments) for conversation in _closed(load).conversations]


def _closed(load: Load) -> ClosedLoad:
    return closed_load(
        [Tenant(name="default")],
        concurrency=load.concurrency,
        num_requests=load.num_requests,
        num_prompt_tokens=load.num_prompt_tokens,
        num_output_tokens=load.num_output_tokens,
    )
