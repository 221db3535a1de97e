"""Limits hold exactly over four workers: 400 clients on hot keys, the real engine with the scripted runner.

Tokens per minute: over any span of T seconds at most capacity + refill * T. Tokens per day and month: at most
the limit. Requests at once: never more than the limit in the engine's steps (the ledger is written later).

Then two replicas with a worker each: one has used a part of a limit and falls idle; from the other, a client
wants nearly all that is left. Until when is it refused?
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.gateway.cores import shared
from tests.benchmarks.gateway.customers import Limits
from tests.benchmarks.gateway.exchange import Seen, Shot
from tests.benchmarks.gateway.http_request import chat
from tests.benchmarks.gateway.invariants import Span, most_at_once, num_charged_twice, worst_use
from tests.benchmarks.gateway.load import ClosedLoad, Generator, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import NothingComplete, what_failed
from tests.benchmarks.gateway.stack import ScriptedKind, Stack, running_stack
from tests.benchmarks.gateway.store import Charge
from tests.benchmarks.scheduler.report import Figure, at_most, plain, print_figures, progress
from tests.builders.sluice_process import wait_until

NUM_WORKERS: Final = 4
NUM_CLIENTS: Final = 400
SMOKE_CLIENTS: Final = 60
SECONDS: Final = 40.0
PAUSE_SECONDS: Final = 0.25  # of a refused client
STEP_MS: Final = 5.0
NUM_TOKENS: Final = 20
SETTLED_WITHIN_SECONDS: Final = 30.0

SLOTS: Final = 24
MINUTE: Final = 12_000
DAY: Final = 15_000
MONTH: Final = 20_000
SMOKE_SHARE: Final = 0.1  # of these limits: so that little load reaches them, too

NUM_PROBES: Final = 3
IDLE_CREDIT_MS: Final = 600.0
PROBE_STEP_MS: Final = 1.0
PROBE_PAUSE_SECONDS: Final = 0.02
PROBE_SECONDS: Final = 8.0
PROBE_SLOTS: Final = 16
PROBE_MINUTE: Final = 2_000
PROBE_SHARE: Final = 0.95  # of what is left of the limit, asked for by one request
PROBE_TOKENS: Final = 800  # of answers that hold a slot for most of a second


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    figures = [*_hot(options), *_idle_credit(options)]
    print_figures(figures)
    return figures


# --- hot keys ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hot:
    """The limits, each of a tenant of its own."""

    slots: int
    minute: int
    day: int
    month: int

    @property
    def by_tenant(self) -> Mapping[str, Limits]:
        """As they are set."""
        return {
            "slots": Limits(concurrent_requests=self.slots),
            "minute": Limits(tokens_per_minute=self.minute),
            "day": Limits(tokens_per_day=self.day),
            "month": Limits(tokens_per_month=self.month),
        }


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What hammering brought."""

    hot: Hot
    charges: Sequence[Charge]
    seen: Sequence[Seen]
    engine_spans: Mapping[str, Span]

    def of(self, tenant: str) -> list[Charge]:
        """The tenant's part of the ledger."""
        return [charge for charge in self.charges if charge.tenant == tenant]


def _hot(options: Options) -> Iterator[Figure]:
    progress(f"exact: {options.size(NUM_CLIENTS, smoke=SMOKE_CLIENTS)} clients, {NUM_WORKERS} workers")
    outcome = _hammer(options)
    refused = [one for one in outcome.seen if one.status == 429]
    print(
        f"{len(outcome.charges):,} requests charged, {len(refused):,} refused; "
        f"failed: {what_failed([one for one in outcome.seen if one.status != 429]) or 'none'}\n"
    )
    yield from _minute(outcome)
    yield from _window(outcome, "day", outcome.hot.day)
    yield from _window(outcome, "month", outcome.hot.month)
    slots = outcome.of("slots")
    in_engine = [
        outcome.engine_spans[one.request_id] for one in slots if one.request_id in outcome.engine_spans
    ]
    yield at_most(
        "requests at once, in the engine's steps", most_at_once(in_engine), outcome.hot.slots, digits=0
    )
    twice = num_charged_twice([one.request_id for one in outcome.charges])
    yield at_most("requests charged twice", twice, 0, digits=0)


def _hammer(options: Options) -> Outcome:
    layout, hot = shared(), _hot_limits(options)
    with TemporaryDirectory() as directory:
        spans = Path(directory) / "spans.json"
        engine = ScriptedKind(step_ms=STEP_MS, spans=spans)
        with (
            running_stack(engine, layout, num_workers=NUM_WORKERS) as stack,
            load_process(layout.others) as generator,
        ):
            keys = {name: stack.customer(name, limits) for name, limits in hot.by_tenant.items()}
            seen = generator.carry_out(
                ClosedLoad(
                    address=stack.address(),
                    shots=[
                        Shot(request=chat(key, num_tokens=NUM_TOKENS), tag=name) for name, key in keys.items()
                    ],
                    num_clients=options.size(NUM_CLIENTS, smoke=SMOKE_CLIENTS),
                    seconds=options.size(SECONDS, smoke=3.0),
                    pause_seconds=PAUSE_SECONDS,
                    ramp_seconds=1.0,
                )
            )
            _until_settled(stack, len([one for one in seen if one.is_complete]))
            charges = stack.store.charges()
        return Outcome(
            hot=hot,
            charges=charges,
            seen=seen,
            engine_spans=json.loads(spans.read_text()),
        )


def _hot_limits(options: Options) -> Hot:
    share = options.size(1.0, smoke=SMOKE_SHARE)
    return Hot(
        slots=round(SLOTS * share),
        minute=round(MINUTE * share),
        day=round(DAY * share),
        month=round(MONTH * share),
    )


def _until_settled(stack: Stack, num_answers: int) -> None:
    """Nothing is held, and every whole answer has its row."""
    pids = stack.gateways[0].worker_pids()
    wait_until(
        lambda: stack.store.held(pids).num_live == 0 and len(stack.store.charges()) >= num_answers,
        seconds=SETTLED_WITHIN_SECONDS,
        what="everything to be settled",
    )


def _minute(outcome: Outcome) -> Iterator[Figure]:
    uses = [(one.admitted_at, one.num_tokens) for one in outcome.of("minute")]
    seconds = max((at for at, _ in uses), default=0.0) - min((at for at, _ in uses), default=0.0)
    limit = outcome.hot.minute
    allowed = limit + limit / 60 * seconds
    yield at_most(
        "tokens per minute: beyond refill, in any span",
        worst_use(uses, refill_per_second=limit / 60),
        limit,
        "tokens",
        digits=0,
    )
    yield plain(
        "  used of what was allowed", 100 * sum(tokens for _, tokens in uses) / allowed, "%", digits=1
    )


def _window(outcome: Outcome, name: str, limit: int) -> Iterator[Figure]:
    used = sum(one.num_tokens for one in outcome.of(name))
    yield at_most(f"tokens per {name}: settled", used, limit, "tokens", digits=0)
    yield plain("  used of the limit", 100 * used / limit, "%", digits=1)


# --- credit that sits idle ---------------------------------------------------------------------------


def _idle_credit(options: Options) -> Iterator[Figure]:
    layout, slots, tokens = shared(), list[float](), list[float]()
    with (
        running_stack(ScriptedKind(step_ms=PROBE_STEP_MS), layout, num_gateways=2) as stack,
        load_process(layout.others) as generator,
    ):
        for number in range(options.size(NUM_PROBES, smoke=1)):
            progress(f"exact: credit idle on another replica, probe {number + 1}")
            tokens.append(_tokens_probe(stack, generator, f"tokens-{number}"))
            slots.append(_slots_probe(stack, generator, f"slots-{number}"))
    name = "tokens idle on another replica: last refusal after"
    yield at_most(name, max(tokens), IDLE_CREDIT_MS, "ms", digits=0)
    name = "slots idle on another replica: last refusal after"
    yield at_most(name, max(slots), IDLE_CREDIT_MS, "ms", digits=0)


def _tokens_probe(stack: Stack, generator: Generator, tenant: str) -> float:
    """One replica uses half of the limit; then the other is asked for nearly all of what is left."""
    key = stack.customer(tenant, Limits(tokens_per_minute=PROBE_MINUTE))
    small = Shot(request=chat(key, num_tokens=5))
    (first,) = _ask(stack, generator, 0, small, num_clients=1, num_answers=1)
    each = first.num_prompt_tokens + first.num_tokens
    before = _ask(stack, generator, 0, small, num_clients=4, num_answers=PROBE_MINUTE // 2 // each)
    left = PROBE_MINUTE - each * (1 + sum(one.is_complete for one in before))
    large = Shot(request=chat(key, num_tokens=int(PROBE_SHARE * left) - first.num_prompt_tokens))
    return _last_refusal_ms(before, _ask(stack, generator, 1, large, num_clients=1, num_answers=1))


def _slots_probe(stack: Stack, generator: Generator, tenant: str) -> float:
    """One replica has all slots in use and frees them; then the other is asked for all of them."""
    key = stack.customer(tenant, Limits(concurrent_requests=PROBE_SLOTS))
    shot = Shot(request=chat(key, num_tokens=PROBE_TOKENS))
    before = _ask(stack, generator, 0, shot, num_clients=PROBE_SLOTS, num_answers=PROBE_SLOTS)
    return _last_refusal_ms(
        before, _ask(stack, generator, 1, shot, num_clients=PROBE_SLOTS, num_answers=PROBE_SLOTS)
    )


def _ask(
    stack: Stack, generator: Generator, place: int, shot: Shot, *, num_clients: int, num_answers: int
) -> list[Seen]:
    return generator.carry_out(
        ClosedLoad(
            address=stack.address(place),
            shots=[shot],
            num_clients=num_clients,
            num_answers=num_answers,
            seconds=PROBE_SECONDS,
            pause_seconds=PROBE_PAUSE_SECONDS,
        )
    )


def _last_refusal_ms(before: Sequence[Seen], after: Sequence[Seen]) -> float:
    """From the last answer of the one replica; 0 if the other refused nothing."""
    if not any(one.is_complete for one in after):
        raise NothingComplete(f"the other replica refused for {PROBE_SECONDS:.0f} s: {what_failed(after)}")
    idle_since = max(one.ended_at for one in before)
    refused = [one.ended_at - idle_since for one in after if one.error is not None]
    return 1_000 * max(refused, default=0.0)
