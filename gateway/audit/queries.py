"""All SQL of the audit trail: adding and reading; there is no changing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.audit.tables import audit_event

Facts = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """`actor` did `action` to `subject`. What it was `before`: None when made; `after`: None when removed."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    before: Facts | None
    after: Facts | None


async def record(
    connection: AsyncConnection,
    *,
    actor: str,
    action: str,
    subject: str,
    before: Facts | None = None,
    after: Facts | None = None,
) -> None:
    """Adds one event to the transaction that makes the change."""
    await connection.execute(
        insert(audit_event).values(
            actor=actor,
            action=action,
            subject=subject,
            before=None if before is None else dict(before),
            after=None if after is None else dict(after),
        )
    )


async def newest(
    connection: AsyncConnection,
    *,
    limit: int,
    before_id: int | None = None,
    actor: str | None = None,
    subject: str | None = None,
) -> list[AuditEvent]:
    """At most `limit` events, newest first; the page after the one that ended with `before_id`.

    With `actor` or `subject`: only what this one did, or what was done to this.
    """
    page = select(audit_event).order_by(audit_event.c.id.desc()).limit(limit)
    if actor is not None:
        page = page.where(audit_event.c.actor == actor)
    if subject is not None:
        page = page.where(audit_event.c.subject == subject)
    if before_id is not None:
        page = page.where(audit_event.c.id < before_id)
    rows = await connection.execute(page)
    return [AuditEvent(**row) for row in rows.mappings()]
