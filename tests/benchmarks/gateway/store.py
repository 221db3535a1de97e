"""The bench's Postgres, and what is read from it: who holds what, what was charged, how many statements ran.

Read-only, and by the tables' own names: this is the outside view that a gateway is held to. Tables that later
versions add are looked for before they are read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from deploy import embedded_postgres
from migrations.run import upgrade
from tests.benchmarks.gateway.cores import Cores, on_cores
from tests.benchmarks.gateway.processor_time import processor_seconds
from tests.builders.sluice_process import descendants

# What a dead replica was lent is in doubt until a peer reconciles it.
_HELD: Final = """
    WITH living AS (
        SELECT epoch FROM replica WHERE split_part(name, ':', 2) = ANY(%s)
    )
    SELECT (SELECT coalesce(sum(num_live), 0) FROM replica_load),
           (SELECT count(*) FROM quota_lease WHERE granted > 0 AND epoch NOT IN (SELECT epoch FROM living))
"""
_CHARGES: Final = """
    SELECT e.request_id, t.name, e.prompt_tokens + e.completion_tokens, e.completion_tokens, e.outcome,
           extract(epoch FROM e.admitted_at)::float8, extract(epoch FROM e.settled_at)::float8
    FROM usage_event e JOIN tenant t ON t.id = e.tenant_id ORDER BY e.admitted_at
"""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One row of the ledger. Times are Unix times."""

    request_id: str
    tenant: str
    num_tokens: int
    num_completion_tokens: int
    outcome: str
    admitted_at: float
    settled_at: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """Requests that replicas hold something for, and loans of replicas that are dead."""

    num_live: int
    num_in_doubt: int


# None while it is validated.
_RECORDED: Final = """
    SELECT CASE WHEN status <> 'validating' THEN num_completed + num_failed END FROM batch WHERE id = %s
"""


class Store:
    """A running server's database."""

    def __init__(self, url: str, data_dir: Path, pid: int) -> None:
        self.url = url
        self.pid = pid
        self._log = data_dir / "postgres.log"
        self._connection = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        """Ends our own connection."""
        self._connection.close()

    def held(self, worker_pids: Sequence[int]) -> Held:
        """What is held now. `worker_pids` live; a replica's name ends in its own."""
        ((num_live, num_in_doubt),) = self._rows(_HELD, [[str(pid) for pid in worker_pids]])
        return Held(num_live=num_live, num_in_doubt=num_in_doubt)

    def charges(self) -> list[Charge]:
        """The whole ledger, in the order of admission."""
        return [
            Charge(
                request_id=row[0], tenant=row[1], num_tokens=row[2], num_completion_tokens=row[3],
                outcome=row[4], admitted_at=row[5], settled_at=row[6],
            )
            for row in self._rows(_CHARGES)
        ]  # fmt: skip

    def num_charges(self) -> int:
        """Rows of the ledger."""
        ((num,),) = self._rows("SELECT count(*) FROM usage_event")
        return int(num)

    def num_recorded(self, batch_id: str) -> int | None:
        """Lines of a batch that have their result; None while they are validated."""
        ((num,),) = self._rows(_RECORDED, [batch_id])
        return None if num is None else int(num)

    def processor_seconds(self) -> float:
        """That the server's processes have used, as far as they live."""
        return processor_seconds([self.pid, *descendants(self.pid)])

    # --- statements --------------------------------------------------------------------------------------

    def log_statements(self) -> None:
        """From now on the server logs each one: the embedded build has no pg_stat_statements to ask."""
        self._rows("ALTER SYSTEM SET log_statement = 'all'")
        self._rows("SELECT pg_reload_conf()")

    def num_statements(self) -> int:
        """That were logged so far, BEGIN and COMMIT included."""
        with self._log.open("rb") as lines:
            return sum(b"LOG:  statement:" in line or b"LOG:  execute " in line for line in lines)

    def num_transactions(self) -> int:
        """That were committed so far. The server counts a connection's only now and then."""
        (row,) = self._rows("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(row[0])

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        cursor = self._connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def running_store(data_dir: Path, cores: Cores) -> Iterator[Store]:
    """A new server with the newest schema."""
    with on_cores(cores):
        server = embedded_postgres.start(data_dir)
    try:
        upgrade(server.url)
        store = Store(server.url, data_dir, server.pid)
        try:
            yield store
        finally:
            store.close()
    finally:
        server.stop()
