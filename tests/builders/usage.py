"""Events for tests of the ledger."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from engine.protocol import RequestClass, Usage
from gateway.tenants.ids import KeyId, ProjectId, TenantId
from gateway.usage.outcome import Outcome
from gateway.usage.queries import UsageEvent

ADMITTED_AT: Final = datetime(2026, 1, 5, 12, 34, 56, 789_123, tzinfo=UTC)


def usage_event(request_id: str = "request-1", *, usage: Usage | None = None, **changes: Any) -> UsageEvent:
    """A finished request of 10 + 5 tokens, 4 of the prompt cached."""
    values: dict[str, Any] = {
        "request_id": request_id,
        "tenant": TenantId("tenant"),
        "project": ProjectId("project"),
        "key": KeyId("key"),
        "model": "tiny",
        "request_class": RequestClass.INTERACTIVE,
        "usage": usage or Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5),
        "outcome": Outcome.FINISHED,
        "admitted_at": ADMITTED_AT,
    }
    return UsageEvent(**values | changes)


def lost(request_id: str = "request-1", *, num_known: int = 0) -> UsageEvent:
    """One whose gateway died; of its output engines knew `num_known` tokens."""
    usage = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=num_known)
    return usage_event(request_id, usage=usage, outcome=Outcome.LOST)


def in_doubt(request_id: str = "request-1", *, at_most: int) -> UsageEvent:
    """One whose gateway and engine died; its client got `at_most` tokens of output."""
    usage = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=at_most)
    return usage_event(request_id, usage=usage, outcome=Outcome.IN_DOUBT)


def days_ago(days: int) -> datetime:
    """Noon of a day in the past, UTC."""
    return datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=days)
