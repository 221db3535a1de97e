"""Takes batches in: what their owners order, find, list and cancel, and what validators make of them.

Spans batches, files, keys and limits. Each verb is one short transaction.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from engine.protocol import RequestClass
from gateway.batches import queries
from gateway.batches.batch import Batch, Order
from gateway.batches.faults import Fault
from gateway.batches.ids import BatchId, new_batch_id
from gateway.batches.items import Items
from gateway.batches.status import TERMINAL
from gateway.batches.window import window_of
from gateway.db import Database
from gateway.errors import InvalidRequest, LimitReached, NotFound
from gateway.files import queries as files
from gateway.files.file import StoredFile
from gateway.files.ids import FileId
from gateway.files.purpose import Purpose
from gateway.keys import queries as keys
from gateway.keys.caller import Caller
from gateway.quotas import queries as quotas
from gateway.quotas.limits import QuotaKind, QuotaLimit, Scope
from gateway.quotas.refusals import scope_name
from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a caller says of a batch. `keep_output_seconds` None: as long as outputs are kept."""

    input_file: FileId
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str] | None = None
    keep_output_seconds: int | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """Whose batch it is, and which life's validator has a say in it."""

    batch: BatchId
    tenant: TenantId
    tenant_name: str
    project: ProjectId
    key: KeyId
    epoch: int


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A batch to be validated. `models` are those that its key may use; None: all."""

    ticket: Ticket
    blob: str
    endpoint: str
    models: frozenset[str] | None


@dataclass(frozen=True, kw_only=True)
class Validated:
    """What the items of a batch come to."""

    model: str
    num_items: int
    num_tokens: int


# --- for their owners --------------------------------------------------------------------------------------


async def create(database: Database, caller: Caller, wanted: Wanted, *, most_open: int) -> Batch:
    """A new batch, or the one that was ordered under the same idempotency key.

    Raises InvalidRequest, NotFound for the input file, StoreUnavailable, and LimitReached where so many of
    the tenant's have not ended.
    """
    window = _window(wanted)
    async with database.tenant_transaction(caller.tenant) as connection:
        await queries.lock_orders(connection, caller.tenant)
        earlier = await _under_key(connection, caller, wanted)
        if earlier is not None:
            return earlier
        if await queries.num_open(connection, caller.tenant) >= most_open:
            raise _too_many_open(caller, most_open)
        stored = await _input_file(connection, caller, wanted.input_file)
        order = Order(
            tenant=caller.tenant,
            project=caller.project,
            key=caller.key,
            endpoint=wanted.endpoint,
            input_file=stored.id,
            input_blob=stored.blob,
            completion_window=wanted.completion_window,
            window_seconds=window,
            output_expires_after_seconds=wanted.keep_output_seconds,
            metadata=wanted.metadata,
            idempotency_key=wanted.idempotency_key,
        )
        return await queries.add(connection, new_batch_id(), order)


async def find(database: Database, caller: Caller, batch_id: BatchId) -> Batch:
    """A batch of the caller's project. Raises NotFound, StoreUnavailable."""
    async with database.tenant_transaction(caller.tenant) as connection:
        return await _found(connection, caller, batch_id)


async def page(database: Database, caller: Caller, *, limit: int, after: BatchId | None) -> Sequence[Batch]:
    """At most `limit` batches of the caller's project, newest first, behind `after`. Raises NotFound."""
    async with database.tenant_transaction(caller.tenant) as connection:
        if after is not None:
            await _found(connection, caller, after)
        return await queries.page(connection, caller.tenant, caller.project, limit=limit, after=after)


async def cancel(database: Database, caller: Caller, batch_id: BatchId) -> Batch:
    """The batch, which is being cancelled now. Raises NotFound, InvalidRequest when it has ended."""
    async with database.tenant_transaction(caller.tenant) as connection:
        await queries.cancel(connection, caller.tenant, caller.project, batch_id)
        batch = await _found(connection, caller, batch_id)
    if batch.status in TERMINAL:
        raise InvalidRequest(
            f"Batch {batch_id} cannot be cancelled: it is {batch.status} already.", code="batch_has_ended"
        )
    return batch


# --- for validators ----------------------------------------------------------------------------------------


async def claim(
    database: Database,
    *,
    epoch: int,
    in_hand: Collection[BatchId] = (),
    passed_over: Collection[TenantId] = (),
) -> Claimed | None:
    """A batch that this process is to validate, none of those in hand or of a tenant that is passed over.

    Raises StoreUnavailable.
    """
    async with database.system_transaction() as connection:
        batch = await queries.claim_for_validation(
            connection, epoch=epoch, in_hand=in_hand, passed_over=passed_over
        )
        if batch is None:
            return None
        key = await keys.record(connection, batch.key)
    ticket = Ticket(
        batch=batch.id,
        tenant=batch.tenant,
        tenant_name=batch.tenant if key is None else key.tenant_name,
        project=batch.project,
        key=batch.key,
        epoch=epoch,
    )
    models = frozenset() if key is None else key.models
    return Claimed(ticket=ticket, blob=batch.input_blob, endpoint=batch.endpoint, models=models)


async def is_awaited(database: Database, ticket: Ticket) -> bool:
    """Whether the batch still waits for this validator."""
    async with database.tenant_transaction(ticket.tenant) as connection:
        return await queries.awaits_validator(connection, ticket.tenant, ticket.batch, epoch=ticket.epoch)


async def take_in(database: Database, ticket: Ticket, validated: Validated, chunks: Iterable[Items]) -> None:
    """Stores a batch's items and lets them be run; fails it where they are more than may be enqueued.

    Changes nothing where the batch waits for this validator no longer.
    """
    async with database.system_transaction() as connection:
        if not await _lock(connection, ticket):
            return
        await queries.lock_enqueued_tokens(connection, ticket.tenant)
        fault = await _over_a_limit(connection, ticket, validated)
        if fault is not None:
            await queries.fail(connection, ticket.tenant, ticket.batch, [fault])
            return
        for items in chunks:
            await queries.add_items(connection, ticket.tenant, ticket.batch, items)
        await queries.begin(
            connection,
            ticket.tenant,
            ticket.batch,
            model=validated.model,
            num_items=validated.num_items,
            enqueued_tokens=validated.num_tokens,
        )


async def refuse(database: Database, ticket: Ticket, found: Sequence[Fault]) -> None:
    """Fails a batch for what is wrong with it, if it still waits for this validator."""
    async with database.tenant_transaction(ticket.tenant) as connection:
        if await _lock(connection, ticket):
            await queries.fail(connection, ticket.tenant, ticket.batch, found)


async def _lock(connection: AsyncConnection, ticket: Ticket) -> bool:
    return await queries.awaits_validator(
        connection, ticket.tenant, ticket.batch, epoch=ticket.epoch, for_update=True
    )


async def _over_a_limit(connection: AsyncConnection, ticket: Ticket, validated: Validated) -> Fault | None:
    """The first limit that the batch would exceed. Nobody else adds to what is counted meanwhile."""
    for limit in await quotas.limits_of(connection, ticket.tenant):
        if not _is_for(limit, ticket, validated.model):
            continue
        enqueued = await queries.enqueued_tokens(
            connection,
            ticket.tenant,
            project=ticket.project if limit.scope is Scope.PROJECT else None,
            key=ticket.key if limit.scope is Scope.KEY else None,
            model=limit.model,
        )
        if enqueued + validated.num_tokens > limit.value:
            return _limit_reached(limit, ticket, validated, enqueued)
    return None


def _is_for(limit: QuotaLimit, ticket: Ticket, model: str) -> bool:
    return (
        limit.kind is QuotaKind.BATCH_ENQUEUED_TOKENS
        and limit.scope_id in (ticket.tenant, ticket.project, ticket.key)
        and limit.counts(model=model, request_class=RequestClass.OFFLINE)
    )


def _limit_reached(limit: QuotaLimit, ticket: Ticket, validated: Validated, enqueued: int) -> Fault:
    where = f"{validated.model} in {scope_name(limit, tenant_name=ticket.tenant_name)}"
    return Fault(
        "token_limit_exceeded",
        None,
        f"Enqueued token limit reached for {where}: Limit {limit.value}, Enqueued {enqueued}, "
        f"Requested {validated.num_tokens}. Please try again once batches in progress have ended.",
    )


# --- what orders say ---------------------------------------------------------------------------------------


def _window(wanted: Wanted) -> int:
    try:
        return int(window_of(wanted.completion_window).total_seconds())
    except ValueError as error:
        raise InvalidRequest(
            f"'completion_window' {error}.", param="completion_window", code="invalid_value"
        ) from error


def _too_many_open(caller: Caller, most_open: int) -> LimitReached:
    return LimitReached(
        f"Open batches limit reached for organization {caller.tenant_name}: Limit {most_open}. "
        "Wait until some have ended, or put more lines into each.",
        limit_type="requests",
        code="open_batches_limit_reached",
        retry_after_seconds=None,
        should_retry=False,
    )


async def _under_key(connection: AsyncConnection, caller: Caller, wanted: Wanted) -> Batch | None:
    """What was ordered under the key before. Raises InvalidRequest where that was something else."""
    key = wanted.idempotency_key
    if key is None:
        return None
    await queries.forget_old_key(connection, caller.tenant, caller.project, key)
    earlier = await queries.find_by_key(connection, caller.tenant, caller.project, key)
    if earlier is not None and not _is_same(earlier, wanted):
        raise InvalidRequest(
            f"This Idempotency-Key was used for another batch: {earlier.id}.", code="idempotency_key_reused"
        )
    return earlier


def _is_same(earlier: Batch, wanted: Wanted) -> bool:
    return (
        earlier.input_file == wanted.input_file
        and earlier.endpoint == wanted.endpoint
        and earlier.completion_window == wanted.completion_window
        and earlier.metadata == wanted.metadata
        and earlier.output_expires_after_seconds == wanted.keep_output_seconds
    )


async def _input_file(connection: AsyncConnection, caller: Caller, file_id: FileId) -> StoredFile:
    stored = await files.find(connection, caller.tenant, caller.project, file_id, keep=True)
    if stored is None:
        raise NotFound(f"No such File object: {file_id}", param="input_file_id")
    if stored.purpose is not Purpose.BATCH:
        raise InvalidRequest(
            f"The purpose of {file_id} is '{stored.purpose}'; a batch reads files of purpose 'batch'.",
            param="input_file_id",
            code="invalid_value",
        )
    return stored


async def _found(connection: AsyncConnection, caller: Caller, batch_id: BatchId) -> Batch:
    batch = await queries.find(connection, caller.tenant, caller.project, batch_id)
    if batch is None:
        raise NotFound(f"No such Batch object: {batch_id}", param="id")
    return batch
