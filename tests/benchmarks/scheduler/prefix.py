"""How much of a public trace's prompts need not be computed again. Simulated.

A block of the trace's 512 tokens is one block of 16 here, equal ids are equal text. The cache holds a
tenth of the trace's distinct full blocks. The measure is plain LRU over the very lookups that the engine
made, in their order: it knows nothing of running sequences, answers or tenants.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.core.limits import Limits
from tests.benchmarks.scheduler.engines import NO_TIMEOUT_MS, SimulatedEngine
from tests.benchmarks.scheduler.parallel import simulate_all
from tests.benchmarks.scheduler.report import Figure, at_least, plain, print_figures, progress
from tests.benchmarks.scheduler.traces import (
    MOONCAKE_BLOCK_TOKENS,
    TracedConversation,
    mooncake_conversations,
)
from tests.builders.simulator.laws import GPU_LIKE
from tests.builders.simulator.requests import Request, Served

BLOCK_SIZE: Final = 16
DIVISOR: Final = MOONCAKE_BLOCK_TOKENS // BLOCK_SIZE
CACHE_SHARE: Final = 10  # of the distinct blocks, one in so many
MAX_TOKENS: Final = 64
NUM_TENANTS: Final = 16
LEAST_OF_LRU: Final = {1: 95, NUM_TENANTS: 90}

Lookup = tuple[tuple[str, int], ...]
"""A prompt's full blocks: (whose, which)."""


@dataclass(frozen=True, kw_only=True)
class Hits:
    """Tokens that were looked up, and found: by the engine, by LRU with the same tenants, by one without."""

    num_tenants: int
    num_blocks: int
    looked_up: int
    found: int
    found_by_lru: int
    found_by_lru_of_all: int
    num_served: int


def run() -> list[Figure]:
    """Prints the table and returns the figures."""
    progress("prefix: the trace for one tenant, and dealt to sixteen")
    figures = [figure for hits in simulate_all(_replayed, LEAST_OF_LRU) for figure in _figures(hits)]
    print_figures(figures)
    return figures


def _figures(hits: Hits) -> Iterator[Figure]:
    who = "one tenant" if hits.num_tenants == 1 else f"{hits.num_tenants} tenants"
    yield at_least(
        f"{who}: hit rate, of plain LRU's", 100 * hits.found / hits.found_by_lru,
        LEAST_OF_LRU[hits.num_tenants], "%", digits=1,
    )  # fmt: skip
    yield plain("  hit rate", 100 * hits.found / hits.looked_up, "%", digits=1)
    yield plain("  plain LRU's", 100 * hits.found_by_lru / hits.looked_up, "%", digits=1)
    if hits.num_tenants > 1:
        share = 100 * hits.found_by_lru_of_all / hits.looked_up
        yield plain("  plain LRU's, were all one tenant", share, "%", digits=1)
    yield Figure(name="  requests, cache", value=f"{hits.num_served:,}, {hits.num_blocks:,} blocks")


def _replayed(num_tenants: int) -> Hits:
    trace = mooncake_conversations()
    num_blocks = len({block for row in trace for block in _full_blocks(row)}) // CACHE_SHARE
    engine = SimulatedEngine(
        law=GPU_LIKE,
        limits=Limits(waiting_timeout_ms=NO_TIMEOUT_MS, kv_cache_utilization_limit=1.0),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
    )
    record = engine.run(_requests(trace, num_tenants), until=float("inf")).record
    served = [(row, each) for row, each in zip(trace, record.requests, strict=True) if each.ended_at]
    lookups = [
        _lookup(row, each.tenant) for row, each in sorted(served, key=lambda pair: _looked_up_at(pair[1]))
    ]
    return Hits(
        num_tenants=num_tenants,
        num_blocks=num_blocks,
        looked_up=BLOCK_SIZE * sum(len(lookup) for lookup in lookups),
        found=sum(each.num_cached_tokens for _, each in served),
        found_by_lru=BLOCK_SIZE * _found_by_lru(lookups, num_blocks),
        found_by_lru_of_all=BLOCK_SIZE
        * _found_by_lru([tuple(("", block) for _, block in lookup) for lookup in lookups], num_blocks),
        num_served=len(served),
    )


def _looked_up_at(served: Served) -> float:
    assert served.queue_wait is not None
    return served.arrived_at + served.queue_wait


def _found_by_lru(lookups: Sequence[Lookup], num_blocks: int) -> int:
    """Leading blocks found, over all lookups. A prompt's later blocks count as less recently used."""
    known: OrderedDict[tuple[str, int], None] = OrderedDict()
    num_found = 0
    for lookup in lookups:
        for block in lookup:
            if block not in known:
                break
            num_found += 1
        for block in reversed(lookup):
            known[block] = None
            known.move_to_end(block)
        while len(known) > num_blocks:
            known.popitem(last=False)
    return num_found


def _lookup(row: TracedConversation, tenant: str) -> Lookup:
    return tuple((tenant, block) for block in _full_blocks(row))


def _full_blocks(row: TracedConversation) -> tuple[int, ...]:
    """The ids of the blocks that can be found: a prompt's last token is computed always."""
    return row.block_ids[: (_num_prompt_tokens(row) - 1) // BLOCK_SIZE]


def _num_prompt_tokens(row: TracedConversation) -> int:
    full, rest = divmod(row.num_prompt_tokens, MOONCAKE_BLOCK_TOKENS)
    return BLOCK_SIZE * full + (max(1, rest // DIVISOR) if rest else 0)


def _requests(trace: Sequence[TracedConversation], num_tenants: int) -> Iterator[Request]:
    """Made as they come: their texts together would be large."""
    for row in trace:
        tenant = _tenant(row, num_tenants)
        num_tokens = _num_prompt_tokens(row)
        yield Request(
            at=row.at,
            tenant=tenant,
            num_prompt_tokens=num_tokens,
            num_output_tokens=min(MAX_TOKENS, max(2, row.num_output_tokens // DIVISOR)),
            max_tokens=MAX_TOKENS,
            cache_namespace=tenant.encode(),
            token_ids=_prompt(row, num_tokens),
        )


def _tenant(row: TracedConversation, num_tenants: int) -> str:
    """Whoever has the conversation: its first block after the one that all share."""
    conversation = row.block_ids[1] if len(row.block_ids) > 1 else row.block_ids[0]
    return f"tenant-{conversation * 2654435761 % 2**32 % num_tenants}"


def _prompt(row: TracedConversation, num_tokens: int) -> tuple[int, ...]:
    tokens = (1 + block * BLOCK_SIZE + offset for block in row.block_ids for offset in range(BLOCK_SIZE))
    return tuple(token for token, _ in zip(tokens, range(num_tokens), strict=False))
