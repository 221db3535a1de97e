"""Public traces of requests, read from a folder; without it, lengths of their shape from published quantiles.

The folder is SLUICE_TRACE_DIR, by default ../shared/data beside the checkout. The project contains no trace.
"""

import csv
import json
import os
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

TRACE_DIR = Path(os.environ.get("SLUICE_TRACE_DIR") or Path(__file__).parents[4] / "shared" / "data")

AZURE_FILE = "azure_llm_2023_conv.csv"
AZURE_ROWS = 19_366
AZURE_SECONDS = 3508.0
# share of requests -> tokens at most; Azure Public Dataset, conversation, 2023-11-16
AZURE_PROMPT_QUANTILES = (
    *((0.0, 3), (0.05, 181), (0.1, 207), (0.25, 396), (0.5, 1020), (0.75, 1189), (0.9, 2735)),
    *((0.95, 4083), (0.99, 4142), (0.999, 6212), (1.0, 14050)),
)
AZURE_OUTPUT_QUANTILES = (
    *((0.0, 7), (0.05, 41), (0.1, 54), (0.25, 85), (0.5, 129), (0.75, 395), (0.9, 424)),
    *((0.95, 451), (0.99, 601), (0.999, 954), (1.0, 1000)),
)

MOONCAKE_FILE = "mooncake_conversation.jsonl"
MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One row: when (seconds from the start), and how long."""

    at: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class TracedConversation:
    """One row of Mooncake: equal block ids at the front are equal text."""

    at: float
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...]


def azure_conversations() -> list[TracedRequest]:
    """A conversation service's requests of about an hour, in order."""
    path = TRACE_DIR / AZURE_FILE
    if not path.is_file():
        print(f"{path} is not there (set SLUICE_TRACE_DIR): its lengths are drawn from published quantiles")
        return _synthetic_conversations()
    with path.open() as lines:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), row["ContextTokens"], row["GeneratedTokens"])
            for row in csv.DictReader(lines)
        ]
    start = rows[0][0]
    return [
        TracedRequest((moment - start).total_seconds(), int(prompt), int(output))
        for moment, prompt, output in rows
    ]


def mooncake_conversations() -> list[TracedConversation]:
    """A chat service's requests of about an hour, with the blocks of their prompts."""
    path = TRACE_DIR / MOONCAKE_FILE
    if not path.is_file():
        print(f"{path} is not there (set SLUICE_TRACE_DIR): conversations of the same shape are made up")
        return list(_synthetic_mooncake())
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    return [
        TracedConversation(
            row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"])
        )
        for row in rows
    ]


def _synthetic_conversations() -> list[TracedRequest]:
    """Poisson arrivals whose rate changes every ten seconds: the trace's own varies by about a third."""
    generator = random.Random(2023)
    requests: list[TracedRequest] = []
    at, rate, changes_at = 0.0, AZURE_ROWS / AZURE_SECONDS, 0.0
    while len(requests) < AZURE_ROWS:
        if at >= changes_at:
            rate = AZURE_ROWS / AZURE_SECONDS * generator.lognormvariate(-0.05, 0.32)
            changes_at += 10.0
        at += generator.expovariate(rate)
        prompt = _at_quantile(AZURE_PROMPT_QUANTILES, generator.random())
        output = _at_quantile(AZURE_OUTPUT_QUANTILES, generator.random())
        requests.append(TracedRequest(at, prompt, output))
    return requests


def _at_quantile(quantiles: tuple[tuple[float, int], ...], share: float) -> int:
    """Linear between the published points."""
    after = min(bisect_right([point[0] for point in quantiles], share), len(quantiles) - 1)
    (low_share, low), (high_share, high) = quantiles[after - 1], quantiles[after]
    return round(low + (high - low) * (share - low_share) / (high_share - low_share))


def _synthetic_mooncake() -> Iterator[TracedConversation]:
    """Twelve thousand turns over an hour: four in ten continue a conversation of the last minutes.

    A prompt has 23 blocks on average, and all share the first, as in the trace.
    """
    generator = random.Random(2024)
    recent: list[tuple[int, ...]] = []
    next_id = 1
    for number in range(12_031):
        goes_on = recent and generator.random() < 0.4
        known = recent.pop(generator.randrange(len(recent))) if goes_on else (0,)
        num_new = max(1, min(240, int(generator.lognormvariate(1.4 if goes_on else 2.6, 0.9))))
        block_ids = (*known, *range(next_id, next_id + num_new))
        next_id += num_new
        recent = [*recent, block_ids][-1500:]
        output = min(2000, int(generator.lognormvariate(5.4, 0.9)) + 1)
        tokens = MOONCAKE_BLOCK_TOKENS * len(block_ids) - generator.randrange(MOONCAKE_BLOCK_TOKENS)
        yield TracedConversation(number * 3537 / 12_031, tokens, output, block_ids)
