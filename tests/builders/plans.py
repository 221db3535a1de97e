"""How much Postgres looks at to answer a statement, whatever time that takes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

_COUNTED = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")


@asynccontextmanager
async def rows_touched(connection: AsyncConnection) -> AsyncIterator[list[int]]:
    """For each statement that is sent meanwhile, the rows that all steps of its plan saw; known when left.

    Each is run again for that, in the same transaction.
    """
    sent: list[tuple[str, Any]] = []
    touched: list[int] = []

    def note(_connection: object, _cursor: object, statement: str, values: Any, *_rest: object) -> None:
        sent.append((statement, values))

    event.listen(connection.sync_connection, "before_cursor_execute", note)
    yield touched
    event.remove(connection.sync_connection, "before_cursor_execute", note)
    for statement, values in sent:
        answer = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values)
        (explained,) = answer.scalar_one()
        touched.append(_rows_of(explained["Plan"]))


def _rows_of(step: dict[str, Any]) -> int:
    own = sum(step.get(counted, 0) for counted in _COUNTED) * step["Actual Loops"]
    return int(own) + sum(_rows_of(inner) for inner in step.get("Plans", ()))
