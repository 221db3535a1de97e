"""Ten thousand lines, and fifty times somebody gets SIGKILL: a gateway worker, the engine, or Postgres.

Workers are started again by their supervisor, the others by us, as whoever runs them would. In the end each
line must be in the files once and charged once, and what was done must not have been done again.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

from deploy import embedded_postgres
from deploy.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from migrations.run import upgrade
from tests.benchmarks.batches.client import ENDED, Files, batch_client, chat_lines
from tests.benchmarks.gateway.cores import shared
from tests.benchmarks.gateway.customers import Limits, make_customer
from tests.benchmarks.gateway.gateway_process import GatewayProcess, clean_environment, running_gateway
from tests.benchmarks.gateway.http_request import MODEL
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.scheduler.report import Figure, at_least, at_most, plain, print_figures, progress
from tests.builders.free_port import free_port
from tests.builders.scripted_engine import SHARED_SECRET

NUM_LINES: Final = 10_000
NUM_KILLS: Final = 50
SMOKE_LINES: Final = 400
SMOKE_KILLS: Final = 3
NUM_WORKERS: Final = 2
NUM_TOKENS: Final = 8
STEP_MS: Final = 100.0
MOST_LEASED: Final = 2 * 1_024  # what two workers may have claimed at once
LOOK_SECONDS: Final = 0.2
SEED: Final = 20_261_130
VICTIMS: Final = ("worker", "engine", "Postgres")
_DONE: Final = "SELECT line FROM batch_item WHERE state = 'done'"
_CHARGES: Final = """
    SELECT substring(request_id FROM '^batch_req_[0-9a-f]+_([0-9]+)_')::int, prompt_tokens + completion_tokens
    FROM usage_event
"""


@dataclass
class Installation:
    """All that runs. The store and the engine are started again here when they were killed."""

    data_dir: Path
    engine_port: int
    server: EmbeddedPostgres
    engine: "subprocess.Popen[bytes]"
    gateway: GatewayProcess | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    num_killed: Counter[str] = field(default_factory=Counter)

    def kill(self, victim: str, random: Random) -> None:
        """SIGKILL, and whoever would start it again does."""
        self.num_killed[victim] += 1
        if victim == "Postgres":
            os.kill(self.server.pid, signal.SIGKILL)
            self.server.stop()
            self.server = _started_again(self.data_dir)
        elif victim == "engine":
            self.engine.kill()
            self.engine.wait()
            self.engine = _start_engine(self.engine_port)
        elif self.gateway is not None and (pids := self.gateway.worker_pids()):
            os.kill(random.choice(sorted(pids)), signal.SIGKILL)


@dataclass
class Watch:
    """Lines that were seen to be done; none of them may ever be anything else."""

    done: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)

    def look(self, url: str) -> None:
        """What the store says now, if it answers; once the batch has ended it says nothing."""
        try:
            with psycopg.connect(url, connect_timeout=2) as connection:
                now = {line for (line,) in connection.execute(_DONE)}
        except psycopg.Error:
            return
        if now:
            self.undone |= self.done - now
            self.done |= now


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    num_lines = options.size(NUM_LINES, smoke=SMOKE_LINES)
    num_kills = options.size(NUM_KILLS, smoke=SMOKE_KILLS)
    with TemporaryDirectory(prefix="sluice-bench-") as folder, _installation(Path(folder)) as installed:
        assert installed.gateway is not None
        key = make_customer("batches", Limits(tokens_per_month=10**9), installed.environment)
        with batch_client(installed.gateway.url, key) as client:
            content = chat_lines(
                num_lines, model=MODEL, num_tokens=NUM_TOKENS, question=lambda n: f"Number {n}?"
            )
            batch_id = client.order(client.upload(content))
            watch = _kill_during(installed, batch_id, num_lines=num_lines, num_kills=num_kills)
            ended = client.state(batch_id)
            files = client.files(ended)
        charged = _charges(installed.server.url)
    print(f"killed: {dict(installed.num_killed)}; ended as {ended['status']}, {ended['request_counts']}\n")
    figures = [
        *_figures(num_lines, files, charged, watch),
        at_least("kills", installed.num_killed.total(), num_kills, digits=0),
    ]
    print_figures(figures)
    return figures


def _figures(
    num_lines: int, files: Files, charged: Mapping[int, list[int]], watch: Watch
) -> Iterator[Figure]:
    answered = Counter(line["custom_id"] for line in [*files.output, *files.errors])
    wanted = {f"line-{number}" for number in range(1, num_lines + 1)}
    by_line = {_number(line): _tokens(line) for line in files.output}
    yield at_most("lines missing in the files", len(wanted - answered.keys()), 0, digits=0)
    yield at_most("lines more than once in the files", sum(num > 1 for num in answered.values()), 0, digits=0)
    yield at_most("lines with an error", len(files.errors), 0, digits=0)
    yield at_most("answered lines not charged", len(by_line.keys() - charged.keys()), 0, digits=0)
    yield at_most("lines charged twice", sum(len(all_of) > 1 for all_of in charged.values()), 0, digits=0)
    wrong = sum(charged.get(line, [0])[0] != tokens for line, tokens in by_line.items())
    yield at_most("lines charged other than answered", wrong, 0, digits=0)
    yield at_most("finished lines that were run again", len(watch.undone), 0, digits=0)
    yield plain("lines seen done while others were killed", len(watch.done), digits=0)


def _kill_during(installed: Installation, batch_id: str, *, num_lines: int, num_kills: int) -> Watch:
    """Somebody is killed whenever enough lines are done, so that it happens all through the batch."""
    random, watch = Random(SEED), Watch()
    due = sorted(random.sample(range(1, num_lines), num_kills))  # when so many lines are done
    status = "validating"
    while status not in ENDED:
        watch.look(installed.server.url)
        num_killed = installed.num_killed.total()
        if num_killed < num_kills and len(watch.done) >= due[num_killed]:
            victim = VICTIMS[num_killed % len(VICTIMS)]
            progress(f"crashes: kill {num_killed + 1} of {num_kills}: {victim}; {len(watch.done):,} done")
            installed.kill(victim, random)
        status = _status(installed.server.url, batch_id) or status
        time.sleep(LOOK_SECONDS)
    return watch


def _status(url: str, batch_id: str) -> str | None:
    """None while the store does not answer."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            row = connection.execute("SELECT status FROM batch WHERE id = %s", [batch_id]).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else str(row[0])


def _charges(url: str) -> dict[int, list[int]]:
    """What each line was charged, as often as it was."""
    found: dict[int, list[int]] = {}
    with psycopg.connect(url) as connection:
        for line, num_tokens in connection.execute(_CHARGES):
            found.setdefault(line, []).append(num_tokens)
    return found


def _number(line: Mapping[str, Any]) -> int:
    return int(str(line["custom_id"]).removeprefix("line-"))


def _tokens(line: Mapping[str, Any]) -> int:
    return int(line["response"]["body"]["usage"]["total_tokens"])


# --- what runs ---------------------------------------------------------------------------------------


@contextmanager
def _installation(data_dir: Path) -> Iterator[Installation]:
    port = free_port()
    server = embedded_postgres.start(data_dir)
    installed = Installation(data_dir=data_dir, engine_port=port, server=server, engine=_start_engine(port))
    try:
        upgrade(server.url)
        environment = clean_environment(_settings(installed))
        with running_gateway(
            data_dir / "gateway", environment, num_workers=NUM_WORKERS, cores=shared().gateway
        ) as gateway:
            installed.gateway, installed.environment = gateway, environment
            yield installed
    finally:
        installed.engine.kill()
        installed.engine.wait()
        installed.server.stop()


def _started_again(data_dir: Path) -> EmbeddedPostgres:
    """Tried until nothing of the killed server is left that keeps a new one from its memory."""
    while True:
        try:
            return embedded_postgres.start(data_dir)
        except EmbeddedPostgresError as error:
            progress(f"crashes: {error}"[:100])
            time.sleep(LOOK_SECONDS)


def _settings(installed: Installation) -> dict[str, str]:
    return {
        "database_url": installed.server.url,
        "files.directory": str(installed.data_dir / "files"),
        "gateway.engines": f"ws://127.0.0.1:{installed.engine_port}",
        "secrets.engine_shared": SHARED_SECRET,
        "secrets.key_pepper": secrets.token_hex(32),
        "secrets.cache_namespace": secrets.token_hex(32),
    }


def _start_engine(port: int) -> "subprocess.Popen[bytes]":
    """Ready or not: gateways connect when it listens."""
    command = [
        *(sys.executable, "-m", "tests.benchmarks.gateway.scripted_process"),
        *("--step-ms", str(STEP_MS), "--port", str(port)),
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
