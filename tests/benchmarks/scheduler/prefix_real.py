"""What a repeated prompt saves the real model, and that it saves nothing to others. Wall-clock time.

Each round has a new prompt of 1,024 tokens: cold from tenant A, again from A, then from B, one at a time.
A round before them warms up and does not count.
"""

import statistics
from collections.abc import Iterator
from itertools import count
from typing import Final

from tests.benchmarks.scheduler.real_model import NO_STOP, RealEngine, real_engine
from tests.benchmarks.scheduler.report import Figure, at_most, plain, print_figures, progress
from tests.builders.simulator.requests import Request, Served
from tests.builders.simulator.simulation import Simulation

NUM_PROMPT_TOKENS: Final = 1024
NUM_ROUNDS: Final = 5
NUM_OUTPUT_TOKENS: Final = 4
APART_SECONDS: Final = 60.0  # idle time is skipped
COLD, REPEATED, OTHERS = "cold", "repeated", "of another tenant"


def run() -> list[Figure]:
    """Prints the table and returns the figures."""
    figures = list(_figures(_served(real_engine())))
    print_figures(figures)
    return figures


def _figures(served: dict[str, list[Served]]) -> Iterator[Figure]:
    ttft = {kind: statistics.median(_ttft(each) for each in several) for kind, several in served.items()}
    for kind, seconds in ttft.items():
        spread = " ".join(f"{_ttft(each) * 1e3:.0f}" for each in served[kind])
        yield Figure(name=f"TTFT {kind}, median", value=f"{seconds * 1e3:,.0f} ms", target=f"({spread})")
    yield at_most("repeated, of cold", ttft[REPEATED] / ttft[COLD], 0.4, "times")
    off = abs(ttft[OTHERS] / ttft[COLD] - 1)
    yield at_most("another tenant's, off cold by", 100 * off, 15, "%", digits=1)
    cached = {kind: max(each.num_cached_tokens for each in several) for kind, several in served.items()}
    yield at_most("another tenant's cached tokens", cached[OTHERS], 0, digits=0)
    yield plain("repeated: cached tokens", cached[REPEATED], digits=0)


def _ttft(served: Served) -> float:
    assert served.first_token_after is not None
    return served.first_token_after


def _served(real: RealEngine) -> dict[str, list[Served]]:
    progress(f"prefix_real: {NUM_ROUNDS} rounds of three requests")
    kinds = ((COLD, "A"), (REPEATED, "A"), (OTHERS, "B"))
    record = Simulation(
        real.scheduler(), real.machine(), _requests(real, [tenant for _, tenant in kinds])
    ).run()
    warm = record.requests[len(kinds) :]
    return {kind: warm[place :: len(kinds)] for place, (kind, _) in enumerate(kinds)}


def _requests(real: RealEngine, tenants: list[str]) -> Iterator[Request]:
    number = count(1)
    for round_number in range(-1, NUM_ROUNDS):
        prompt = real.prompt(NUM_PROMPT_TOKENS, seed=round_number)
        for tenant in tenants:
            yield Request(
                at=APART_SECONDS * next(number),
                tenant=tenant,
                num_prompt_tokens=NUM_PROMPT_TOKENS,
                num_output_tokens=NUM_OUTPUT_TOKENS,
                max_tokens=NUM_OUTPUT_TOKENS,
                cache_namespace=tenant.encode(),
                token_ids=prompt,
                stop_token_ids=NO_STOP,
            )
