"""`/v1/batches`: a file of requests to be answered within a time, as in the published API. Thin."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from msgspec import Meta

from gateway import batch_intake
from gateway.api.admin.described import COMPONENTS
from gateway.api.body import read_body
from gateway.api.context import context_of
from gateway.api.file_form import MAX_KEEP_SECONDS, MIN_KEEP_SECONDS
from gateway.api.services import services_of
from gateway.batch_intake import Wanted
from gateway.batches.batch import Batch
from gateway.batches.faults import Fault
from gateway.batches.ids import BatchId
from gateway.batches.progress import done_at
from gateway.batches.status import BatchStatus
from gateway.files.ids import FileId
from gateway.idempotency import LONGEST_KEY
from gateway.keys.caller import Caller
from gateway.keys.scope import Scope

MOST_METADATA: Final = 16
LONGEST_METADATA_NAME: Final = 64  # characters
LONGEST_METADATA_VALUE: Final = 512
LONGEST_ID: Final = 200

Name = Annotated[str, Meta(max_length=LONGEST_METADATA_NAME)]
Value = Annotated[str, Meta(max_length=LONGEST_METADATA_VALUE)]
Metadata = Annotated[dict[Name, Value], Meta(max_length=MOST_METADATA)]
Limit = Annotated[int, Query(ge=1, le=100, description="How many at most.")]
After = Annotated[str | None, Query(max_length=LONGEST_ID, description="Begin behind the batch of this id.")]
IdempotencyKey = Annotated[
    str | None,
    Header(max_length=LONGEST_KEY, description="For a day, the same order makes one batch."),
]


class OutputExpiry(msgspec.Struct, frozen=True):
    """How long the files that a batch makes are kept: so many seconds from when they were made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_KEEP_SECONDS, le=MAX_KEEP_SECONDS)]


class NewBatch(msgspec.Struct, frozen=True):
    """A batch to be ordered. `completion_window` is `24h`; other lengths (`90m`, `7d`) are an extension."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions"]
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class FaultList(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a batch's input."""

    object: Literal["list"] = "list"
    data: tuple[Fault, ...]


class RequestCounts(msgspec.Struct, frozen=True):
    """How far a batch has come, in lines."""

    total: int
    completed: int
    failed: int


class InputDetails(msgspec.Struct, frozen=True):
    """How much of the prompts was found in the cache."""

    cached_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    """How much of the output was reasoning."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of finished lines."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are Unix seconds; null: not yet, or never."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: FaultList | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of batches, newest first; the next begins `after` the last id of this one."""

    object: Literal["list"] = "list"
    data: list[BatchView]
    first_id: str | None
    last_id: str | None
    has_more: bool


SHAPES: Final = (NewBatch, BatchView, BatchList)

router = APIRouter(prefix="/v1/batches", tags=["Batches"], default_response_class=Response)


def _answers(shape: type[msgspec.Struct]) -> dict[str, object]:
    (schema,), _ = msgspec.json.schema_components([shape], ref_template=COMPONENTS)
    return {"description": "Done.", "content": {"application/json": {"schema": schema}}}


def _takes(shape: type[msgspec.Struct]) -> dict[str, object]:
    (schema,), _ = msgspec.json.schema_components([shape], ref_template=COMPONENTS)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post(
    "", summary="Create a batch", responses={200: _answers(BatchView)}, openapi_extra=_takes(NewBatch)
)
async def create_batch(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Its input file is read after this answer; what is wrong with it is found in `errors`."""
    caller = await _caller(request)
    body = await read_body(request, NewBatch)
    expiry = body.output_expires_after
    wanted = Wanted(
        input_file=FileId(body.input_file_id),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        metadata=body.metadata,
        keep_output_seconds=None if expiry is None else expiry.seconds,
        idempotency_key=idempotency_key or None,
    )
    services = services_of(request.scope)
    most_open = services.settings.max_open_batches
    return _shown(await batch_intake.create(services.database, caller, wanted, most_open=most_open))


@router.get("", summary="List batches, newest first", responses={200: _answers(BatchList)})
async def list_batches(request: Request, limit: Limit = 20, after: After = None) -> Response:
    """A page of those of the key's project."""
    caller = await _caller(request)
    found = await batch_intake.page(
        services_of(request.scope).database,
        caller,
        limit=limit + 1,
        after=None if after is None else BatchId(after),
    )
    shown = [_view(batch) for batch in found[:limit]]
    page = BatchList(
        data=shown,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > limit,
    )
    return Response(msgspec.json.encode(page), media_type="application/json")


@router.get("/{batch_id}", summary="Retrieve a batch", responses={200: _answers(BatchView)})
async def retrieve_batch(request: Request, batch_id: str) -> Response:
    """One batch of the key's project."""
    caller = await _caller(request)
    return _shown(await batch_intake.find(services_of(request.scope).database, caller, BatchId(batch_id)))


@router.post("/{batch_id}/cancel", summary="Cancel a batch", responses={200: _answers(BatchView)})
async def cancel_batch(request: Request, batch_id: str) -> Response:
    """No more of it is begun; what is done is in its files once it is `cancelled`. May be repeated."""
    caller = await _caller(request)
    return _shown(await batch_intake.cancel(services_of(request.scope).database, caller, BatchId(batch_id)))


async def _caller(request: Request) -> Caller:
    """Who asks. Raises InvalidApiKey, PermissionDenied or StoreUnavailable."""
    caller = await services_of(request.scope).keys.authenticate(context_of(request.scope).authorization)
    caller.require(Scope.BATCH)
    return caller


def _shown(batch: Batch) -> Response:
    return Response(
        msgspec.json.encode(_view(batch)), media_type="application/json", headers=_estimate(batch)
    )


def _estimate(batch: Batch) -> dict[str, str]:
    """When it will be done, where that can be told."""
    if batch.status is not BatchStatus.IN_PROGRESS:
        return {}
    moment = done_at(
        datetime.now(UTC), num_left=batch.num_left, rate=batch.items_per_second, expires_at=batch.expires_at
    )
    return {} if moment is None else {"x-sluice-batch-estimated-completion": str(int(moment.timestamp()))}


def _view(batch: Batch) -> BatchView:
    return BatchView(
        id=batch.id,
        endpoint=batch.endpoint,
        model=batch.model,
        errors=FaultList(data=batch.faults) if batch.faults else None,
        input_file_id=batch.input_file,
        completion_window=batch.completion_window,
        status=batch.status,
        output_file_id=batch.output_file,
        error_file_id=batch.error_file,
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=_unix(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=_unix(batch.finalizing_at),
        completed_at=_unix(batch.completed_at),
        failed_at=_unix(batch.failed_at),
        expired_at=_unix(batch.expired_at),
        cancelling_at=_unix(batch.cancelling_at),
        cancelled_at=_unix(batch.cancelled_at),
        request_counts=RequestCounts(batch.num_items, batch.num_completed, batch.num_failed_so_far),
        usage=BatchUsage(
            input_tokens=batch.prompt_tokens,
            input_tokens_details=InputDetails(batch.cached_tokens),
            output_tokens=batch.completion_tokens,
            total_tokens=batch.prompt_tokens + batch.completion_tokens,
        ),
        metadata=None if batch.metadata is None else dict(batch.metadata),
    )


def _unix(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
