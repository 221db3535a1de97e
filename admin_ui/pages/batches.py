"""The Batches pages: everybody's offline work, how far it is, and the button that ends it."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from admin_ui.batch_waits import what_it_waits_for
from admin_ui.charts import stacked
from admin_ui.context import AdminContext, Context
from admin_ui.event_stream import StreamToken, event_stream
from admin_ui.live import Snapshot
from admin_ui.page import redirect_with_flash, show_page
from admin_ui.sessions import OwnForm, SignedIn
from gateway import administration, batch_administration, limit_administration
from gateway.batch_administration import BatchDetail
from gateway.batches.batch import Batch
from gateway.batches.ids import BatchId
from gateway.batches.operator_queries import OwnedBatch
from gateway.batches.progress import done_at
from gateway.batches.status import OPEN, BatchStatus
from gateway.tenants.tenant import Tenant

router = APIRouter(prefix="/batches")

PAGE_SIZE: Final = 50
LIST: Final = "batches/list_live.html"
DETAIL: Final = "batches/detail_live.html"
NOT_ENDED: Final = "open"  # a choice of its own: all states of batches that have not ended


@router.get("")
async def list_page(request: Request, context: Context, session: SignedIn) -> Response:
    """Batches, newest first: those of the tenant and in the state that the query names."""
    values = await _list_values(context, request.query_params)
    return show_page(request, context, session, "batches/list.html", **values)


@router.get("/live")
async def list_live(request: Request, context: Context, token: StreamToken) -> Response:
    """The same list, drawn anew every second."""
    query = request.query_params
    await _list_values(context, query)  # what cannot be listed is said before anything is streamed

    async def draw(_: Snapshot) -> str:
        return context.renderer.render(LIST, await _list_values(context, query))

    return event_stream(context, token, draw)


@router.get("/{batch_id}")
async def detail_page(request: Request, context: Context, session: SignedIn, batch_id: str) -> Response:
    """One batch: counts, times, files, what is wrong with it, and what it waits for."""
    values = await _detail_values(context, batch_id)
    return show_page(request, context, session, "batches/detail.html", **values)


@router.get("/{batch_id}/live")
async def detail_live(context: Context, token: StreamToken, batch_id: str) -> Response:
    """The same, drawn anew every second."""
    await _detail_values(context, batch_id)

    async def draw(_: Snapshot) -> str:
        return context.renderer.render(DETAIL, await _detail_values(context, batch_id))

    return event_stream(context, token, draw)


@router.get("/{batch_id}/cancel")
async def cancel_page(request: Request, context: Context, session: SignedIn, batch_id: str) -> Response:
    """Asks once more: what was not done is not done any more."""
    values = await _detail_values(context, batch_id)
    return show_page(request, context, session, "batches/cancel.html", **values)


@router.post("/{batch_id}/cancel")
async def cancel(
    request: Request, context: Context, session: SignedIn, _form: OwnForm, batch_id: str
) -> Response:
    """Begins to end the batch."""
    await batch_administration.cancel_batch(context.database, session.operator_name, BatchId(batch_id))
    return redirect_with_flash(request, context, f"/batches/{batch_id}", "The batch is being cancelled.")


# --- the list ----------------------------------------------------------------------------------------------


async def _list_values(context: AdminContext, query: Mapping[str, str]) -> dict[str, Any]:
    tenant = await _tenant(context, query.get("tenant"))
    state = query.get("state", "")
    found = await batch_administration.page_of_batches(
        context.database,
        statuses=_statuses(state),
        tenant_name_or_id=None if tenant is None else tenant.id,
        limit=PAGE_SIZE + 1,
        after=query.get("after"),
    )
    shown, now = found[:PAGE_SIZE], datetime.now(UTC)
    return {
        "batches": [_row_values(owned, now=now) for owned in shown],
        "tenant": tenant,
        "state": state,
        "states": [
            ("", "All states"),
            (NOT_ENDED, "Not ended"),
            *((s.value, _words(s)) for s in BatchStatus),
        ],
        "is_first_page": "after" not in query,
        "live_path": _path("/batches/live", query),
        "first_path": _path("/batches", {**query, "after": ""}),
        "older_path": _older_path(query, shown) if len(found) > PAGE_SIZE else None,
    }


async def _tenant(context: AdminContext, name_or_id: str | None) -> Tenant | None:
    if not name_or_id:
        return None
    return (await administration.get_tenant(context.database, name_or_id)).tenant


def _statuses(state: str) -> Collection[BatchStatus] | None:
    """None: any."""
    if state == NOT_ENDED:
        return OPEN
    return [status for status in BatchStatus if status.value == state] or None


def _older_path(query: Mapping[str, str], shown: Sequence[OwnedBatch]) -> str:
    return _path("/batches", {**query, "after": shown[-1].batch.id})


def _path(path: str, query: Mapping[str, str]) -> str:
    known = {name: query[name] for name in ("tenant", "state", "after") if query.get(name)}
    return f"{path}?{urlencode(known)}" if known else path


# --- what is shown of one ----------------------------------------------------------------------------------


def _row_values(owned: OwnedBatch, *, now: datetime) -> dict[str, Any]:
    batch = owned.batch
    num_done = batch.num_completed + batch.num_failed
    return {
        "batch": batch,
        "owned": owned,
        "words": _words(batch.status),
        "is_open": batch.status in OPEN,
        "may_be_cancelled": batch.status in OPEN - {BatchStatus.CANCELLING},
        "num_done": num_done,
        "bars": stacked((batch.num_completed, batch.num_failed, batch.num_left)),
        "done_at": _done_at(batch, now=now),
    }


async def _detail_values(context: AdminContext, batch_id: str) -> dict[str, Any]:
    detail = await batch_administration.get_batch(context.database, BatchId(batch_id))
    owned = detail.owned
    limits = await limit_administration.list_limits(context.database, owned.batch.tenant)
    return {
        **_row_values(owned, now=datetime.now(UTC)),
        "detail": detail,
        "waits_for": what_it_waits_for(
            owned.batch, detail.items, is_tenant_enabled=owned.is_tenant_enabled, limits=limits
        ),
        "times": _times(owned.batch),
        "files": _files(detail),
    }


def _times(batch: Batch) -> list[tuple[str, datetime]]:
    """What happened when, in the order in which it happens."""
    moments = [
        ("Submitted", batch.created_at),
        ("In progress", batch.in_progress_at),
        ("Finalizing", batch.finalizing_at),
        ("Cancelling", batch.cancelling_at),
        ("Completed", batch.completed_at),
        ("Failed", batch.failed_at),
        ("Expired", batch.expired_at),
        ("Cancelled", batch.cancelled_at),
        ("Window ends", batch.expires_at),
    ]
    return [(what, at) for what, at in moments if at is not None]


def _files(detail: BatchDetail) -> list[dict[str, Any]]:
    """Those that it has, or had."""
    batch = detail.owned.batch
    there = [
        ("Input", batch.input_file, detail.input_file),
        ("Answers", batch.output_file, detail.output_file),
        ("Errors", batch.error_file, detail.error_file),
    ]
    return [
        {"what": what, "id": file_id, "file": file} for what, file_id, file in there if file_id is not None
    ]


def _done_at(batch: Batch, *, now: datetime) -> datetime | None:
    """None: it has ended, or nobody knows."""
    if batch.status is not BatchStatus.IN_PROGRESS or batch.ends_as is not None:
        return None
    return done_at(now, num_left=batch.num_left, rate=batch.items_per_second, expires_at=batch.expires_at)


def _words(status: BatchStatus) -> str:
    return status.value.replace("_", " ").capitalize()
