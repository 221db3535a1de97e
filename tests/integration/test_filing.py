"""What is recorded and what goes: at the limit, after a crash, when a file's time is over."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway import filing as filing_module
from gateway.batches.status import BatchStatus
from gateway.db import Database
from gateway.errors import LimitReached, StoreUnavailable
from gateway.files import queries
from gateway.files.file import StoredFile
from gateway.files.local_store import LocalFileStore
from gateway.files.places import file_store
from gateway.files.purpose import Purpose
from gateway.files.store import StoredBlob
from gateway.filing import Filing, Wanted
from gateway.rhythm import Rhythm
from gateway.settings import FilesSection
from gateway.tenants.ids import TenantId
from tests.builders.files import add_batch, age, on_disk, set_batch_status
from tests.builders.store import Customer, make_customer
from tests.builders.store_rows import rows, value

pytestmark = pytest.mark.postgres

WANTED = Wanted(filename="in.jsonl", purpose=Purpose.BATCH)
EXPIRED = "31 days"


@pytest.fixture
async def filing(database: Database, tmp_path: Path) -> AsyncIterator[Filing]:
    filing = Filing(database, LocalFileStore(tmp_path), FilesSection(max_tenant_bytes=1_000))
    yield filing
    filing.close()


@pytest.fixture
async def customer(database: Database) -> Customer:
    return await make_customer(database)


async def stored(filing: Filing, customer: Customer, content: bytes = b"line\n") -> StoredFile:
    async with filing.uploading(customer.caller) as upload:
        await upload.incoming.write(content)
        return await filing.keep(upload, WANTED)


def make_old(path: Path) -> None:
    os.utime(path, (0, time.time() - FilesSection().left_after.total_seconds() - 100))


async def test_what_has_expired_goes_with_its_bytes_and_the_rest_stays(
    filing: Filing, customer: Customer, database: Database, tmp_path: Path
) -> None:
    old, young = await stored(filing, customer), await stored(filing, customer)
    await age(database, old.id, EXPIRED)
    assert await filing.delete_expired() == 1
    assert await filing.delete_expired() == 0
    assert await filing.find(customer.caller, young.id) == young
    assert on_disk(tmp_path) == [tmp_path / young.blob]


async def test_so_many_at_once_and_no_more(filing: Filing, customer: Customer, database: Database) -> None:
    for _ in range(3):
        await age(database, (await stored(filing, customer)).id, EXPIRED)
    assert [await filing.delete_expired(limit=2) for _ in range(3)] == [2, 1, 0]


async def test_what_an_unfinished_batch_reads_expires_when_that_has_ended(
    filing: Filing, customer: Customer, database: Database
) -> None:
    read = await stored(filing, customer)
    await age(database, read.id, EXPIRED)
    await add_batch(database, customer, read.id)
    assert await filing.delete_expired() == 0
    put_off = (await filing.find(customer.caller, read.id)).expires_at
    assert put_off is not None
    assert put_off > datetime.now(UTC)
    await set_batch_status(database, BatchStatus.EXPIRED)
    await age(database, read.id, "2 hours")
    assert await filing.delete_expired() == 1


async def test_removing_waits_for_who_is_about_to_use_a_file(
    filing: Filing, customer: Customer, database: Database
) -> None:
    """A batch is ordered in a transaction that keeps the file; the sweep passes it by."""
    read, caller = await stored(filing, customer), customer.caller
    await age(database, read.id, EXPIRED)
    async with database.tenant_transaction(customer.tenant.id) as connection:
        assert await queries.find(connection, caller.tenant, caller.project, read.id, keep=True)
        assert await filing.delete_expired() == 0
    assert await filing.delete_expired() == 1


async def test_a_blob_without_a_row_goes_later(filing: Filing, customer: Customer, tmp_path: Path) -> None:
    known = await stored(filing, customer)
    writer = filing.store.create(customer.tenant.id)
    writer.write(b"whose process died before it was recorded")
    orphan = tmp_path / writer.commit()
    make_old(tmp_path / known.blob)
    assert await filing.remove_orphans(Rhythm()) == 0
    make_old(orphan)
    assert await filing.remove_orphans(Rhythm()) == 1
    assert on_disk(tmp_path) == [tmp_path / known.blob]


async def test_a_blob_is_no_orphan_as_long_as_its_upload_may_have_lasted(
    database: Database, customer: Customer, tmp_path: Path
) -> None:
    """A bucket's blobs are as old as the beginning of their upload, and are recorded at its end."""
    settings = FilesSection(directory=tmp_path, upload_seconds=86_400)
    filing = Filing(database, file_store(settings), settings)
    filing.store.create(customer.tenant.id).commit()
    part = filing.store.create(customer.tenant.id)
    for path in on_disk(tmp_path):
        os.utime(path, (0, time.time() - settings.upload_seconds - 60))
    assert await filing.remove_orphans(Rhythm()) == 0
    assert len(on_disk(tmp_path)) == 2
    part.abort()
    filing.close()


async def test_no_further_blobs_are_looked_at_when_the_term_is_over(
    filing: Filing, customer: Customer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stops does not wait for the listing of a large store."""
    monkeypatch.setattr(filing_module, "BLOBS_AT_ONCE", 1)
    for _ in range(3):
        make_old(tmp_path / filing.store.create(customer.tenant.id).commit())
    term, listed = Rhythm(), filing.store.blobs()

    def blobs() -> Iterator[StoredBlob]:
        yield next(listed)
        term.stop()
        yield from listed

    monkeypatch.setattr(filing.store, "blobs", blobs)
    assert await filing.remove_orphans(term) == 1
    assert len(on_disk(tmp_path)) == 2


async def test_blobs_of_another_stores_tenants_are_none_of_ours(filing: Filing, tmp_path: Path) -> None:
    writer = filing.store.create(TenantId("ten_of_another_store"))
    writer.write(b"text")
    theirs = tmp_path / writer.commit()
    make_old(theirs)
    assert await filing.remove_orphans(Rhythm()) == 0
    assert on_disk(tmp_path) == [theirs]


async def test_what_may_have_been_recorded_is_left_to_the_sweep(
    filing: Filing, customer: Customer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a commit took effect is unknown when the store goes away during it."""

    async def lose_the_connection(*_: object, **__: object) -> None:
        raise StoreUnavailable("The connection to the database was lost.")

    monkeypatch.setattr(queries, "insert", lose_the_connection)
    with pytest.raises(StoreUnavailable):
        await stored(filing, customer)
    (blob,) = on_disk(tmp_path)
    make_old(blob)
    assert await filing.remove_orphans(Rhythm()) == 1


async def test_what_was_refused_at_last_leaves_nothing(
    filing: Filing, customer: Customer, database_url: str, tmp_path: Path
) -> None:
    """Two uploads that each have room, and together have not."""
    async with filing.uploading(customer.caller) as first, filing.uploading(customer.caller) as second:
        await first.incoming.write(b"x" * 600)
        await second.incoming.write(b"x" * 600)
        kept = await filing.keep(first, WANTED)
        with pytest.raises(LimitReached, match="Limit 1000 bytes, Used 600, Requested 600"):
            await filing.keep(second, WANTED)
    assert on_disk(tmp_path) == [tmp_path / kept.blob]
    assert value(database_url, "SELECT sum(num_bytes)::int FROM file") == 600


async def test_the_limit_is_exact_over_replicas_that_record_at_once(
    filing: Filing, customer: Customer, database: Database, database_url: str, tmp_path: Path
) -> None:
    replica = Filing(database, filing.store, filing.settings)
    async with AsyncExitStack() as stack:
        ready = []
        for number in range(10):
            place = (filing, replica)[number % 2]
            upload = await stack.enter_async_context(place.uploading(customer.caller))
            await upload.incoming.write(b"x" * 300)
            ready.append(place.keep(upload, WANTED))
        kept = await asyncio.gather(*ready, return_exceptions=True)
    replica.close()
    assert sorted(type(outcome).__name__ for outcome in kept) == ["LimitReached"] * 7 + ["StoredFile"] * 3
    assert value(database_url, "SELECT sum(num_bytes)::int FROM file") == 900
    assert len(on_disk(tmp_path)) == 3


async def test_a_file_whose_bytes_cannot_be_removed_is_gone_all_the_same(
    filing: Filing, customer: Customer, database_url: str, tmp_path: Path
) -> None:
    made = await stored(filing, customer)
    blob = tmp_path / made.blob
    blob.unlink()
    blob.mkdir()  # what the disk refuses to remove
    await filing.delete(customer.caller, made.id)
    assert rows(database_url, "SELECT id FROM file") == []
