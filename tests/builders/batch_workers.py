"""Workers of batches as a gateway process has them, and batches whose lines they can run."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry
from sqlalchemy import insert, update

from gateway.batch_claiming import BatchClaiming
from gateway.batch_item import ItemRunner
from gateway.batch_worker import BatchWorker
from gateway.batches.ids import BatchId
from gateway.batches.tables import batch, batch_item
from gateway.db import Database
from gateway.dispatch import Dispatcher
from gateway.engines.client import EngineAddress, EngineClient, Identity
from gateway.engines.directory import EngineDirectory
from gateway.files.local_store import LocalFileStore
from gateway.generation import Generation
from gateway.item_ledger import ItemLedger
from gateway.metering import Metering
from gateway.metrics import GatewayMetrics
from gateway.requests.catalogue import Catalogue
from tests.builders.batches import custom_id, make_batch
from tests.builders.scripted_engine import SHARED_SECRET
from tests.builders.store import Customer
from tests.builders.stored_gateway import Reachable

MODEL: Final = "scripted"
CHAT: Final = "/v1/chat/completions"


def body(text: str = "hello", *, max_tokens: int | None = 4) -> dict[str, Any]:
    """A chat's body; without `max_tokens` its answer is as long as there is room for."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return asked if max_tokens is None else asked | {"max_tokens": max_tokens}


async def submit(
    database: Database,
    customer: Customer,
    files: LocalFileStore,
    bodies: Sequence[Mapping[str, Any]],
    **changes: Any,
) -> BatchId:
    """A batch in progress, as validation leaves it: one line a body, with the custom id `line-<number>`."""
    lines = [
        json.dumps({"custom_id": custom_id(line), "method": "POST", "url": CHAT, "body": one}).encode()
        for line, one in enumerate(bodies, start=1)
    ]
    writer = files.create(customer.tenant.id)
    writer.write(b"".join(line + b"\n" for line in lines))
    made = await make_batch(database, customer, num_items=0, input_blob=writer.commit(), **changes)
    rows, first_byte = [], 0
    for number, line in enumerate(lines, start=1):
        rows.append(
            {
                "batch_id": made,
                "line": number,
                "tenant_id": customer.tenant.id,
                "custom_id": custom_id(number),
                "first_byte": first_byte,
                "num_bytes": len(line),
                "prompt_tokens": 30,
                "prefix": 0,
            }
        )
        first_byte += len(line) + 1
    async with database.system_transaction() as connection:
        await connection.execute(insert(batch_item), rows)
        await connection.execute(
            update(batch)
            .where(batch.c.id == made)
            .values(model=MODEL, num_items=len(rows), enqueued_tokens=30 * len(rows))
        )
    return made


@dataclass(frozen=True)
class RunningWorker:
    """A worker with the process around it."""

    worker: BatchWorker
    metering: Metering
    ledger: ItemLedger
    generation: Generation


@asynccontextmanager
async def running_worker(
    database: Database, files: LocalFileStore, *engines: Reachable, timeout_seconds: float = 60
) -> AsyncIterator[RunningWorker]:
    """One worker, until the block ends; then it gives back what it has."""
    metering = Metering(database, "worker")
    await metering.start()
    metrics = GatewayMetrics(CollectorRegistry())
    catalogue = Catalogue()

    def make_client(address: EngineAddress) -> EngineClient:
        identity = Identity(replica="worker", epoch=metering.epoch, shared_secret=SHARED_SECRET)
        return EngineClient(
            address,
            identity,
            on_description=catalogue.learn,
            on_status=catalogue.follow,
            on_change=lambda: dispatcher.pump(),
        )

    directory = EngineDirectory([engine.url for engine in engines], make_client)
    dispatcher = Dispatcher(directory, metrics, max_queued=1_000)
    ledger = ItemLedger(metering)
    generation = Generation(
        ledger=ledger,
        dispatcher=dispatcher,
        metrics=metrics,
        in_flight=metrics.items_in_flight,
        namespace_secret=b"secret",
    )
    runner = ItemRunner(
        generation=generation,
        ledger=ledger,
        metering=metering,
        catalogue=catalogue,
        timeout_seconds=timeout_seconds,
    )
    worker = BatchWorker(
        BatchClaiming(database, files, epoch=lambda: metering.epoch),
        runner,
        directory=directory,
        catalogue=catalogue,
    )
    await directory.start()
    await worker.start()
    try:
        yield RunningWorker(worker, metering, ledger, generation)
    finally:
        await worker.stop()
        await generation.settled()
        await directory.stop()
        await metering.stop()
