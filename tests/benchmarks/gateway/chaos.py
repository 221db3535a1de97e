"""Ten thousand clients that vanish, and workers that are killed: does anything stay held, or go uncharged?

Clients reset or close their connections before the first byte, in mid-stream and with the last token, while
every few seconds a worker, drawn at random, gets SIGKILL; its supervisor starts another. At the end one more
is killed with requests under way. The engine is the real one with the scripted runner.
"""

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.benchmarks.gateway.cores import shared
from tests.benchmarks.gateway.exchange import CUT, Leave, Leaving, Seen, Shot
from tests.benchmarks.gateway.gauges import read_gauges
from tests.benchmarks.gateway.http_request import chat
from tests.benchmarks.gateway.invariants import delivery, num_charged_twice
from tests.benchmarks.gateway.load import ClosedLoad, Generator, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.speed import what_failed
from tests.benchmarks.gateway.stack import ScriptedKind, Stack, running_stack
from tests.benchmarks.scheduler.report import Figure, at_least, at_most, plain, print_figures, progress

NUM_WORKERS: Final = 4
NUM_LEAVING: Final = 10_000
NUM_CLIENTS: Final = 200
KILL_EVERY_SECONDS: Final = 4.0
LAST_LOAD_SECONDS: Final = 3.0
STEP_MS: Final = 5.0
NUM_TOKENS: Final = 24
LEAVES_WITHIN_SECONDS: Final = 0.15
STAYING_SHARE: Final = 0.1
DECK: Final = 1_000
SEED: Final = 20_261_130

SLOTS_SECONDS: Final = 3.0
DOUBT_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 40.0  # then what is still held is a miss, however long it would take
LEDGER_SECONDS: Final = 2.0  # what may be written behind
POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """Seconds until nothing was held any more: after the last client, and after the last kill."""

    slots_seconds: float
    doubt_seconds: float


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    layout, random = shared(), Random(SEED)
    with (
        running_stack(ScriptedKind(step_ms=STEP_MS), layout, num_workers=NUM_WORKERS) as stack,
        load_process(layout.others) as generator,
    ):
        shots = _deck(stack.customer("chaos"), random)
        seen, num_killed = _storm(stack, generator, shots, random, options)
        last, killed_at = _last_kill(stack, generator, shots, random)
        seen += last
        aftermath = _aftermath(stack, max(one.ended_at for one in last), killed_at)
        time.sleep(LEDGER_SECONDS)
        charges = stack.store.charges()
    charged = {one.request_id: one.num_completion_tokens for one in charges}
    received = {one.generation_id: one.num_tokens for one in seen if one.generation_id}
    delivered = delivery(received, charged)
    num_left = sum(one.has_left for one in seen)
    print(
        f"{len(seen):,} requests, {num_left:,} left by their clients, {num_killed + 1} kills, "
        f"{sum(one.error == CUT for one in seen):,} cut by them; "
        f"failed otherwise: {what_failed([one for one in seen if one.error != CUT]) or 'none'}\n"
    )
    figures = [
        at_least("abrupt disconnects", num_left, options.size(NUM_LEAVING, smoke=300), digits=0),
        at_most("slots and live reservations gone after", aftermath.slots_seconds, SLOTS_SECONDS, "s"),
        at_most("in-doubt credit reconciled after", aftermath.doubt_seconds, DOUBT_SECONDS, "s"),
        plain("output tokens that clients received", delivered.num_delivered, digits=0),
        plain("  charged for the same requests", delivered.num_charged, digits=0),
        at_most("requests charged less than delivered", delivered.num_requests_short, 0, digits=0),
        at_most("  tokens delivered and not charged", delivered.num_tokens_short, 0, digits=0),
        at_most(
            "requests charged twice", num_charged_twice([one.request_id for one in charges]), 0, digits=0
        ),
    ]
    print_figures(figures)
    return figures


def _deck(key: str, random: Random) -> list[Shot]:
    """Requests of all kinds, shuffled."""
    whole = chat(key, num_tokens=NUM_TOKENS)
    streamed = chat(key, num_tokens=NUM_TOKENS, stream=True)
    shots = []
    for _ in range(DECK):
        request = random.choice((whole, streamed))
        leave = None if random.random() < STAYING_SHARE else _leave(random, is_stream=request is streamed)
        shots.append(Shot(request=request, leave=leave))
    return shots


def _leave(random: Random, *, is_stream: bool) -> Leave:
    """Before the first byte, in mid-stream or with the last token; an answer in one piece has no middle."""
    how = random.choice((Leaving.RESET, Leaving.CLOSE))
    if not is_stream or random.random() < 0.3:
        return Leave(how=how, after_seconds=random.uniform(0, LEAVES_WITHIN_SECONDS))
    num_tokens = NUM_TOKENS if random.random() < 0.3 else random.randrange(1, NUM_TOKENS)
    return Leave(how=how, with_tokens=num_tokens)


def _storm(
    stack: Stack, generator: Generator, shots: Sequence[Shot], random: Random, options: Options
) -> tuple[list[Seen], int]:
    """The load, and how many workers were killed meanwhile. Runs on until enough clients have left."""
    wanted, seen, num_killed = options.size(NUM_LEAVING, smoke=300), list[Seen](), 0
    while (num_missing := wanted - sum(one.has_left for one in seen)) > 0:
        progress(f"chaos: {num_missing:,} clients still to vanish")
        load = generator.begin(
            ClosedLoad(
                address=stack.address(),
                shots=shots,
                num_clients=options.size(NUM_CLIENTS, smoke=40),
                num_requests=int(num_missing / (1 - STAYING_SHARE)) + 50,
            )
        )
        num_killed += _kill_during(load, stack, random)
        seen += load.result()
    return seen, num_killed


def _kill_during(load: "Future[list[Seen]]", stack: Stack, random: Random) -> int:
    num_killed, next_at = 0, time.monotonic() + KILL_EVERY_SECONDS
    while not load.done():
        if time.monotonic() >= next_at:
            _kill_one(stack, random)
            num_killed, next_at = num_killed + 1, next_at + KILL_EVERY_SECONDS
        time.sleep(POLL_SECONDS)
    return num_killed


def _last_kill(
    stack: Stack, generator: Generator, shots: Sequence[Shot], random: Random
) -> tuple[list[Seen], float]:
    """One more worker is killed with requests under way, a second before the last clients leave."""
    progress("chaos: the last kill")
    stack.gateways[0].until_ready(NUM_WORKERS)
    load = generator.begin(
        ClosedLoad(
            address=stack.address(), shots=shots, num_clients=NUM_CLIENTS // 4, seconds=LAST_LOAD_SECONDS
        )
    )
    time.sleep(LAST_LOAD_SECONDS)
    killed_at = _kill_one(stack, random)
    return load.result(), killed_at


def _kill_one(stack: Stack, random: Random) -> float:
    """When it was done."""
    pids = stack.gateways[0].worker_pids()
    if pids:
        os.kill(random.choice(sorted(pids)), signal.SIGKILL)
    return time.monotonic()


def _aftermath(stack: Stack, left_at: float, killed_at: float) -> Aftermath:
    """Watches until nothing is held, or patience ends."""
    slots_at: float | None = None
    doubt_at: float | None = None
    deadline = left_at + PATIENCE_SECONDS
    while (slots_at is None or doubt_at is None) and time.monotonic() < deadline:
        held = stack.store.held(stack.gateways[0].worker_pids())
        now = time.monotonic()
        if slots_at is None and held.num_live == 0 and _num_in_flight(stack) == 0:
            slots_at = now
        if doubt_at is None and held.num_in_doubt == 0:
            doubt_at = now
        time.sleep(POLL_SECONDS)
    return Aftermath(
        slots_seconds=(slots_at or float("inf")) - left_at,
        doubt_seconds=(doubt_at or float("inf")) - killed_at,
    )


def _num_in_flight(stack: Stack) -> float:
    """By the gateway's gauges, and in the engine."""
    gateway = read_gauges(stack.gateways[0].metrics_url)
    engine = read_gauges(f"http://127.0.0.1:{stack.engine.said['wire']}/metrics")
    stems = ("requests_in_flight", "queued_requests", "num_requests_running", "num_requests_waiting")
    return sum(value for name, value in (gateway | engine).items() if any(stem in name for stem in stems))
