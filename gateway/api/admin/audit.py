"""`/admin/v1/audit`: who changed what, and when. There is only reading."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec
from fastapi import APIRouter, Response

from gateway import administration
from gateway.api.admin.described import answered, described
from gateway.api.admin.desk import Desk, desk_for
from gateway.api.admin.pages import AfterNumber, Limit, Named, Page, page_of
from gateway.audit.queries import AuditEvent
from gateway.operators.scopes import OperatorScope

router = APIRouter(prefix="/audit", tags=["Management: audit"])


class AuditEventView(msgspec.Struct, frozen=True):
    """`actor` did `action` to `subject`. `before` null: it was made; `after` null: it was ended."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    before: Mapping[str, str | int | float | bool | None] | None
    after: Mapping[str, str | int | float | bool | None] | None
    object: Literal["audit_event"] = "audit_event"


SHAPES: Final = (AuditEventView, Page[AuditEventView])


@router.get("", summary="List audit events, newest first", **described(Page[AuditEventView]))
async def list_events(
    limit: Limit = 20,
    after: AfterNumber = None,
    actor: Named = None,
    subject: Named = None,
    desk: Desk = desk_for(OperatorScope.AUDIT_READ),
) -> Response:
    """A page of all, or of what one actor did, or of what was done to one subject (an id)."""
    found = await administration.audit_trail(
        desk.database, limit=limit + 1, before_id=after, actor=actor, subject=subject
    )
    return answered(page_of([_view(event) for event in found], limit=limit))


def _view(event: AuditEvent) -> AuditEventView:
    return AuditEventView(
        id=event.id,
        at=event.at,
        actor=event.actor,
        action=event.action,
        subject=event.subject,
        before=event.before,
        after=event.after,
    )
