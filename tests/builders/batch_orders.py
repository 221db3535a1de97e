"""Batches as their owners order them, and validators as a gateway process runs them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.protocol import EngineDescription
from gateway import batch_intake
from gateway.batch_intake import Ticket, Wanted
from gateway.batch_validators import BatchValidators
from gateway.batches.batch import Batch
from gateway.batches.status import BatchStatus
from gateway.db import Database
from gateway.files import queries as files
from gateway.files.file import StoredFile
from gateway.files.ids import new_file_id
from gateway.files.local_store import LocalFileStore
from gateway.files.purpose import Purpose
from gateway.keys.caller import Caller
from gateway.requests.catalogue import Catalogue
from gateway.settings import FilesSection, GatewaySettings, SecretsSection
from tests.builders.batch_input import CHAT
from tests.builders.engine_messages import engine_description
from tests.builders.store import Customer

SECRET = "ab" * 16


@dataclass(frozen=True)
class Orders:
    """Orders batches of files that lie in `directory`."""

    database: Database
    directory: Path

    async def store(
        self, customer: Customer, content: bytes | Iterable[bytes], *, purpose: Purpose = Purpose.BATCH
    ) -> StoredFile:
        """A file of a customer's, of all its bytes or of lines."""
        pieces = [content] if isinstance(content, bytes) else (line + b"\n" for line in content)
        writer = LocalFileStore(self.directory).create(customer.tenant.id)
        num_bytes = 0
        for piece in pieces:
            writer.write(piece)
            num_bytes += len(piece)
        stored = StoredFile(
            id=new_file_id(),
            tenant=customer.tenant.id,
            project=customer.caller.project,
            purpose=purpose,
            filename="in.jsonl",
            num_bytes=num_bytes,
            sha256=b"",
            blob=writer.commit(),
            created_at=datetime.now(UTC),
            expires_at=None,
        )
        async with self.database.tenant_transaction(customer.tenant.id) as connection:
            await files.insert(connection, stored)
        return stored

    async def order(self, customer: Customer, content: bytes | Iterable[bytes], **changes: Any) -> Batch:
        """A batch of these lines, which nobody has validated."""
        stored = await self.store(customer, content)
        return await create(self.database, customer.caller, wanted(stored, **changes))

    async def order_endless(self, customer: Customer) -> Batch:
        """A batch whose validation does not end: its file is a pipe that nobody writes to."""
        batch = await self.order(customer, b"")
        blob = self.directory / batch.input_blob
        blob.unlink()
        os.mkfifo(blob)
        return batch

    def make_endable(self, batch: Batch, content: bytes) -> None:
        """From now on its file can be read to its end; who has begun before still waits."""
        blob = self.directory / batch.input_blob
        blob.unlink()
        blob.write_bytes(content)

    async def now(self, customer: Customer, batch: Batch) -> Batch:
        """The batch as it is."""
        return await batch_intake.find(self.database, customer.caller, batch.id)

    async def until(
        self, customer: Customer, batch: Batch, status: BatchStatus, *, timeout_seconds: float = 30
    ) -> Batch:
        """The batch, once it has that status."""
        async with asyncio.timeout(timeout_seconds):
            while (found := await self.now(customer, batch)).status is not status:
                assert not found.faults, found.faults
                await asyncio.sleep(0.05)
        return found


async def create(database: Database, caller: Caller, order: Wanted, *, most_open: int = 100) -> Batch:
    """A batch, where the tenant has not so many."""
    return await batch_intake.create(database, caller, order, most_open=most_open)


def wanted(stored: StoredFile, **changes: Any) -> Wanted:
    """An order for the chat endpoint."""
    return Wanted(**{"input_file": stored.id, "endpoint": CHAT, "completion_window": "24h", **changes})


async def ticket_of(database: Database, batch: Batch, *, epoch: int = 1) -> Ticket:
    """What lets a validator have its say, of the batch that is next."""
    claimed = await batch_intake.claim(database, epoch=epoch)
    assert claimed is not None
    assert claimed.ticket.batch == batch.id
    return claimed.ticket


@asynccontextmanager
async def running_validators(
    database: Database,
    database_url: str,
    directory: Path,
    *,
    epoch: int = 1,
    description: EngineDescription | None = None,
) -> AsyncIterator[BatchValidators]:
    """The validators of a process that knows one model, `tiny` unless it is described."""
    catalogue = Catalogue()
    await catalogue.learn(description or engine_description())
    settings = GatewaySettings(
        database_url=database_url,
        files=FilesSection(directory=directory),
        secrets=SecretsSection(key_pepper=SECRET, cache_namespace=SECRET, engine_shared=SECRET),
    )
    validators = BatchValidators(database, catalogue, settings, epoch=lambda: epoch, poll_seconds=0.05)
    await validators.start()
    try:
        yield validators
    finally:
        await validators.stop()


def validator_pids() -> list[int]:
    """Processes of this one's that validate."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in own if b"batch_validator" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def until_validating(*, other_than: frozenset[int] = frozenset(), num: int = 1) -> int:
    """A validator's process, once there are so many."""
    async with asyncio.timeout(30):
        # processes of others have no event to wait for
        while len(found := [pid for pid in validator_pids() if pid not in other_than]) < num:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found[0]
