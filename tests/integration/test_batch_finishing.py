"""Files and last states of batches that have ended: each line once, whoever dies or interferes meanwhile."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gateway import batch_finishing
from gateway.batch_files import BatchFiles
from gateway.batch_finishing import BatchFinishing, LinesMissing
from gateway.batches.ids import BatchId
from gateway.batches.outputs import EndedBatch
from gateway.batches.status import BatchStatus, EndsAs, ItemState
from gateway.db import Database
from gateway.errors import FileStoreUnavailable
from gateway.files.local_store import LocalFileStore
from gateway.rhythm import Rhythm
from tests.builders.batch_sweep import sweep_once
from tests.builders.batches import custom_id, finish_lines, lease, make_batch, set_state
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

STATUSES = "SELECT status FROM batch ORDER BY created_at"

END = """
    SELECT status, num_items, num_completed, num_failed, output_file_id IS NOT NULL, error_file_id IS NOT NULL
    FROM batch ORDER BY created_at, id
"""
NUM_LEFT = "SELECT (SELECT count(*) FROM batch_item) + (SELECT count(*) FROM batch_result)"
FILES = "SELECT filename, blob, num_bytes, sha256, purpose FROM file ORDER BY filename"


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


@pytest.fixture
def store(tmp_path: Path) -> LocalFileStore:
    return LocalFileStore(tmp_path / "files")


def lines_of(url: str, store: LocalFileStore, kind: str) -> list[dict[str, Any]]:
    """The lines of the one output or error file, which is what its row says."""
    (found,) = [row for row in rows(url, FILES) if str(row[0]).endswith(f"_{kind}.jsonl")]
    _, blob, num_bytes, sha256, purpose = found
    with store.open(str(blob)) as opened:
        whole = opened.read()
    assert (len(whole), hashlib.sha256(whole).digest()) == (num_bytes, sha256)
    assert purpose == "batch_output"
    assert whole.endswith(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def names_of(lines: Sequence[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


def num_blobs(store: LocalFileStore) -> int:
    return len(list(store.blobs()))


# --- each end -----------------------------------------------------------------------------------------------


async def test_a_completed_batch_has_its_answers_and_its_errors_in_two_files(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    batch = await make_batch(database, customer, num_items=5)
    await finish_lines(database, customer, batch, [1, 3, 5])
    await finish_lines(database, customer, batch, [2, 4], status=400, body=b'{"error":{}}')
    await sweep_once(database, store)
    assert rows(database_url, END) == [("completed", 5, 3, 2, True, True)]
    output = lines_of(database_url, store, "output")
    errors = lines_of(database_url, store, "error")
    assert names_of(output) == ["line-1", "line-3", "line-5"]
    assert names_of(errors) == ["line-2", "line-4"]
    assert output[0]["response"]["body"] == {"ok": True}
    assert errors[0]["response"]["status_code"] == 400
    assert rows(database_url, FILES)[0][0] == f"{batch}_error.jsonl"


async def test_a_batch_of_which_every_line_failed_has_no_output_file(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    batch = await make_batch(database, customer, num_items=2)
    await finish_lines(database, customer, batch, [1, 2], status=400)
    await sweep_once(database, store)
    assert rows(database_url, END) == [("completed", 2, 0, 2, False, True)]
    assert names_of(lines_of(database_url, store, "error")) == ["line-1", "line-2"]


async def test_a_batch_without_errors_has_no_error_file(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    batch = await make_batch(database, customer, num_items=1)
    await finish_lines(database, customer, batch, [1])
    await sweep_once(database, store)
    assert rows(database_url, END) == [("completed", 1, 1, 0, True, False)]


async def test_an_empty_batch_completes_without_files(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    await make_batch(database, customer, num_items=0)
    await sweep_once(database, store)
    assert rows(database_url, END) == [("completed", 0, 0, 0, False, False)]


@pytest.mark.parametrize(
    ("ends_as", "status", "code"),
    [
        (EndsAs.EXPIRED, BatchStatus.IN_PROGRESS, "batch_expired"),
        (EndsAs.CANCELLED, BatchStatus.CANCELLING, "batch_cancelled"),
    ],
)
async def test_a_batch_that_ends_half_way_has_what_was_done_and_says_of_the_rest_why(
    database: Database,
    database_url: str,
    customer: Customer,
    store: LocalFileStore,
    ends_as: EndsAs,
    status: BatchStatus,
    code: str,
) -> None:
    batch = await make_batch(database, customer, num_items=5, status=status, ends_as=ends_as)
    await finish_lines(database, customer, batch, [2])
    await finish_lines(database, customer, batch, [4], status=400)
    await sweep_once(database, store)
    assert rows(database_url, END) == [(ends_as.value, 5, 1, 4, True, True)]
    assert names_of(lines_of(database_url, store, "output")) == ["line-2"]
    errors = lines_of(database_url, store, "error")
    assert sorted(names_of(errors)) == ["line-1", "line-3", "line-4", "line-5"]
    unrun = [line for line in errors if line["response"] is None]
    assert {line["error"]["code"] for line in unrun} == {code}
    assert names_of(unrun) == ["line-1", "line-3", "line-5"]
    assert unrun[0]["id"] == f"batch_req_{batch.removeprefix('batch_')}_1"


@pytest.mark.parametrize(
    ("ends_as", "status"),
    [(EndsAs.EXPIRED, BatchStatus.VALIDATING), (EndsAs.CANCELLED, BatchStatus.CANCELLING)],
)
async def test_a_batch_that_ends_before_it_is_validated_has_no_files(
    database: Database,
    database_url: str,
    customer: Customer,
    store: LocalFileStore,
    ends_as: EndsAs,
    status: BatchStatus,
) -> None:
    await make_batch(database, customer, num_items=0, status=status, ends_as=ends_as)
    await sweep_once(database, store)
    assert rows(database_url, END) == [(ends_as.value, 0, 0, 0, False, False)]
    assert num_blobs(store) == 0


@pytest.mark.parametrize(
    ("ends_as", "status", "column"),
    [
        (EndsAs.COMPLETED, BatchStatus.FINALIZING, "completed_at"),
        (EndsAs.EXPIRED, BatchStatus.IN_PROGRESS, "expired_at"),
        (EndsAs.CANCELLED, BatchStatus.CANCELLING, "cancelled_at"),
    ],
)
async def test_an_end_has_its_own_timestamp(
    database: Database,
    database_url: str,
    customer: Customer,
    store: LocalFileStore,
    ends_as: EndsAs,
    status: BatchStatus,
    column: str,
) -> None:
    await make_batch(database, customer, num_items=0, status=status, ends_as=ends_as)
    await sweep_once(database, store)
    (row,) = rows(database_url, "SELECT completed_at, expired_at, cancelled_at FROM batch")
    at = dict(zip(("completed_at", "expired_at", "cancelled_at"), row, strict=True))
    assert [name for name, moment in at.items() if moment is not None] == [column]


async def test_items_and_results_of_an_ended_batch_go_and_others_stay(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    whole = await make_batch(database, customer, num_items=2)
    await finish_lines(database, customer, whole, [1, 2])
    running = await make_batch(database, customer, num_items=2)
    await finish_lines(database, customer, running, [1])
    await sweep_once(database, store)
    assert rows(database_url, "SELECT DISTINCT batch_id FROM batch_item") == [(running,)]
    assert rows(database_url, "SELECT batch_id FROM batch_result") == [(running,)]


@pytest.mark.parametrize(("seconds", "kept"), [(None, 30 * 86_400), (3_600, 3_600)])
async def test_files_are_kept_as_long_as_was_ordered(
    database: Database,
    database_url: str,
    customer: Customer,
    store: LocalFileStore,
    seconds: int | None,
    kept: int,
) -> None:
    batch = await make_batch(database, customer, num_items=1, output_expires_after_seconds=seconds)
    await finish_lines(database, customer, batch, [1])
    await sweep_once(database, store)
    found = value(database_url, "SELECT extract(epoch FROM expires_at - created_at)::int FROM file")
    assert found == kept


async def test_files_belong_to_the_project_that_ordered_them(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    batch = await make_batch(database, customer, num_items=1)
    await finish_lines(database, customer, batch, [1])
    await sweep_once(database, store)
    owner = (customer.tenant.id, customer.caller.project)
    assert rows(database_url, "SELECT tenant_id, project_id FROM file") == [owner]


async def test_answers_larger_than_a_page_are_written_whole_and_in_order(
    database: Database,
    database_url: str,
    customer: Customer,
    store: LocalFileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.batch_files.PAGE_BYTES", 1_000)
    monkeypatch.setattr("gateway.batch_files.PAGE_LINES", 3)
    batch = await make_batch(database, customer, num_items=20)
    large = json.dumps({"text": "é" * 2_000}).encode()
    await finish_lines(database, customer, batch, [4, 5, 11], body=large)
    await finish_lines(database, customer, batch, [n for n in range(1, 21) if n not in (4, 5, 11)])
    await sweep_once(database, store)
    lines = lines_of(database_url, store, "output")
    assert names_of(lines) == [custom_id(number) for number in range(1, 21)]
    assert lines[3]["response"]["body"] == {"text": "é" * 2_000}


# --- not yet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ItemState.PENDING, ItemState.LEASED])
async def test_a_batch_is_not_finished_while_an_item_is_run_or_waits(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore, state: ItemState
) -> None:
    batch = await make_batch(
        database, customer, num_items=2, status=BatchStatus.CANCELLING, ends_as=EndsAs.CANCELLED
    )
    await set_state(database, batch, [1], ItemState.UNRUN)
    if state is ItemState.LEASED:
        await lease(database, batch, [2], epoch=1)
    await BatchFinishing(database, store).turn(Rhythm())
    assert value(database_url, "SELECT status FROM batch") == "cancelling"


async def test_a_running_batch_is_left_alone(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    await make_batch(database, customer, num_items=2)
    await sweep_once(database, store)
    assert rows(database_url, END) == [("in_progress", 2, 0, 0, False, False)]


# --- crashes and rivals -------------------------------------------------------------------------------------


class DyingFinishing(BatchFinishing):
    """Is killed when both blobs are whole and no row names them."""

    async def _end(self, ended: EndedBatch, written: BatchFiles) -> bool:
        raise asyncio.CancelledError


class SlowFinishing(BatchFinishing):
    """Others finish while it is between its blobs and its transaction."""

    def __init__(self, database: Database, store: LocalFileStore, *others: BatchFinishing) -> None:
        super().__init__(database, store)
        self._others = others

    async def _end(self, ended: EndedBatch, written: BatchFiles) -> bool:
        for other in self._others:
            await other.turn(Rhythm())
        return await super()._end(ended, written)


async def whole_batch(database: Database, customer: Customer, num_items: int = 3) -> BatchId:
    batch = await make_batch(
        database,
        customer,
        num_items=num_items,
        status=BatchStatus.FINALIZING,
        ends_as=EndsAs.COMPLETED,
    )
    await finish_lines(database, customer, batch, range(1, num_items + 1))
    return batch


async def test_a_leader_killed_between_blobs_and_rows_leaves_the_batch_to_the_next(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    await whole_batch(database, customer)
    with pytest.raises(asyncio.CancelledError):
        await DyingFinishing(database, store).turn(Rhythm())
    assert value(database_url, "SELECT status FROM batch") == "finalizing"
    assert rows(database_url, FILES) == []
    await BatchFinishing(database, store).turn(Rhythm())
    assert rows(database_url, END) == [("completed", 3, 3, 0, True, False)]
    assert names_of(lines_of(database_url, store, "output")) == ["line-1", "line-2", "line-3"]


async def test_of_two_leaders_one_finishes_and_the_other_takes_its_blobs_back(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    await whole_batch(database, customer)
    await SlowFinishing(database, store, BatchFinishing(database, store)).turn(Rhythm())
    assert rows(database_url, END) == [("completed", 3, 3, 0, True, False)]
    assert len(rows(database_url, FILES)) == 1
    assert num_blobs(store) == 1
    assert len(lines_of(database_url, store, "output")) == 3


async def test_ten_leaders_at_once_make_one_result(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    await whole_batch(database, customer, num_items=30)
    await asyncio.gather(*(BatchFinishing(database, store).turn(Rhythm()) for _ in range(10)))
    assert rows(database_url, END) == [("completed", 30, 30, 0, True, False)]
    assert (num_blobs(store), len(rows(database_url, FILES))) == (1, 1)
    assert len(lines_of(database_url, store, "output")) == 30


async def test_a_batch_that_is_cancelled_while_its_files_are_written_ends_as_cancelled(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    class Cancelled(BatchFinishing):
        async def turn(self, _: Rhythm) -> None:
            async with database.system_transaction() as connection:
                await connection.execute(
                    text("UPDATE batch SET status = 'cancelling', ends_as = 'cancelled'")
                )

    await whole_batch(database, customer)
    await SlowFinishing(database, store, Cancelled(database, store)).turn(Rhythm())
    assert value(database_url, "SELECT status FROM batch") == "cancelling"
    await BatchFinishing(database, store).turn(Rhythm())
    assert rows(database_url, END) == [("cancelled", 3, 3, 0, True, False)]
    assert num_blobs(store) == 1


async def test_lines_that_a_killed_leader_left_behind_are_cleared_up(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    batch = await whole_batch(database, customer)
    running = await make_batch(database, customer, num_items=2)
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE batch SET status = 'completed' WHERE id = :b"), {"b": batch})
    await BatchFinishing(database, store).clear_up(Rhythm())
    assert rows(database_url, "SELECT DISTINCT batch_id FROM batch_item") == [(running,)]
    assert value(database_url, "SELECT count(*) FROM batch_result") == 0


async def test_a_batch_is_finished_once_the_file_store_is_back(
    database: Database, database_url: str, customer: Customer, tmp_path: Path
) -> None:
    await whole_batch(database, customer)
    store = LocalFileStore(tmp_path / "disk" / "files")
    with pytest.raises(FileStoreUnavailable):
        await BatchFinishing(database, store).turn(Rhythm())
    assert value(database_url, "SELECT status FROM batch") == "finalizing"
    (tmp_path / "disk").mkdir()
    await BatchFinishing(database, store).turn(Rhythm())
    assert rows(database_url, END) == [("completed", 3, 3, 0, True, False)]


async def test_a_batch_that_lacks_a_line_does_not_end_and_others_do(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    broken = await whole_batch(database, customer)
    await whole_batch(database, customer)
    async with database.system_transaction() as connection:
        await connection.execute(text("DELETE FROM batch_result WHERE batch_id = :b"), {"b": broken})
    with pytest.raises(LinesMissing):
        await BatchFinishing(database, store).turn(Rhythm())
    assert {row[0] for row in rows(database_url, END)} == {"finalizing", "completed"}
    assert num_blobs(store) == 1


async def test_batches_that_cannot_be_finished_do_not_hold_up_those_behind_them(
    database: Database,
    database_url: str,
    customer: Customer,
    store: LocalFileStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn takes the oldest ones, and they stayed the oldest."""
    monkeypatch.setattr(batch_finishing, "MOST_BATCHES", 1)
    for _ in range(2):
        await whole_batch(database, customer)
    await change_oldest(database, by=1)
    finishing = BatchFinishing(database, store)
    with pytest.raises(LinesMissing):
        await finishing.turn(Rhythm())
    await finishing.turn(Rhythm())
    assert rows(database_url, STATUSES) == [("finalizing",), ("completed",)]
    await finishing.turn(Rhythm())  # none is left: who was passed over has its turn again
    await change_oldest(database, by=-1)
    await finishing.turn(Rhythm())
    assert rows(database_url, STATUSES) == [("completed",), ("completed",)]


async def change_oldest(database: Database, *, by: int) -> None:
    """Says that the oldest batch has so many items more than it has."""
    async with database.system_transaction() as connection:
        await connection.execute(
            text(
                "UPDATE batch SET num_items = num_items + :by "
                "WHERE id = (SELECT id FROM batch ORDER BY created_at LIMIT 1)"
            ),
            {"by": by},
        )


async def test_a_leader_that_is_stopped_leaves_the_batch_as_it_is(
    database: Database, database_url: str, customer: Customer, store: LocalFileStore
) -> None:
    await whole_batch(database, customer)
    over = Rhythm()
    over.stop()
    await BatchFinishing(database, store).turn(over)
    assert value(database_url, "SELECT status FROM batch") == "finalizing"
    assert num_blobs(store) == 0
