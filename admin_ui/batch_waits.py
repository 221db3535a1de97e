"""What an open batch does or waits for, in a sentence. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from admin_ui.formatting import count, minute
from engine.protocol import RequestClass
from gateway.batches.batch import Batch
from gateway.batches.operator_queries import ItemsStanding
from gateway.batches.status import BatchStatus, EndsAs
from gateway.limit_administration import LimitUse
from gateway.quotas.limits import Counting, QuotaLimit, Scope


def what_it_waits_for(
    batch: Batch, items: ItemsStanding, *, is_tenant_enabled: bool, limits: Iterable[LimitUse]
) -> str | None:
    """None for a batch that has ended. `limits` are all of its tenant's, with what is used of each."""
    match batch.status:
        case BatchStatus.VALIDATING:
            return "Its file is being checked, or waits to be."
        case BatchStatus.IN_PROGRESS:
            return _in_progress(batch, items, is_tenant_enabled=is_tenant_enabled, limits=limits)
        case BatchStatus.FINALIZING:
            return "Every request has its answer; the files are being written."
        case BatchStatus.CANCELLING:
            return _ending("It is being cancelled", items)
        case BatchStatus.FAILED | BatchStatus.COMPLETED | BatchStatus.EXPIRED | BatchStatus.CANCELLED:
            return None
        case _:
            assert_never(batch.status)


def _in_progress(
    batch: Batch, items: ItemsStanding, *, is_tenant_enabled: bool, limits: Iterable[LimitUse]
) -> str:
    if batch.ends_as is EndsAs.EXPIRED:
        return _ending("Its window has closed", items)
    if not is_tenant_enabled:
        return "The tenant is disabled: nothing of it runs until the tenant is enabled again."
    used_up = next((use.limit for use in limits if _stops(use, batch)), None)
    if used_up is not None:
        return (
            f"{used_up.kind.value} of its {used_up.scope.value}, {count(used_up.value)}, is used up: "
            "it goes on when that is renewed or raised."
        )
    if items.num_running:
        return f"{_requests(items.num_running)} now."
    return _nothing_runs(items.next_try_at)


def _nothing_runs(next_try_at: datetime | None) -> str:
    if next_try_at is not None:
        return f"What failed for the moment is tried again from {minute(next_try_at)} on."
    return "It waits for room: people go first, and each tenant's batches have their turn."


def _ending(why: str, items: ItemsStanding) -> str:
    runs = f"; {_requests(items.num_running)} and will be ended" if items.num_running else ""
    return f"{why}{runs}. Then its files are written."


def _requests(num: int) -> str:
    return f"{count(num)} {'request runs' if num == 1 else 'requests run'}"


def _stops(use: LimitUse, batch: Batch) -> bool:
    """Whether a budget that the batch's requests use up is used up."""
    limit = use.limit
    is_its_own = limit.scope_id == _scope_ids(batch)[limit.scope]
    return limit.counting is Counting.WINDOW and is_its_own and _counts(limit, batch) and _is_empty(use)


def _scope_ids(batch: Batch) -> dict[Scope, str]:
    return {Scope.TENANT: batch.tenant, Scope.PROJECT: batch.project, Scope.KEY: batch.key}


def _counts(limit: QuotaLimit, batch: Batch) -> bool:
    return batch.model is not None and limit.counts(model=batch.model, request_class=RequestClass.OFFLINE)


def _is_empty(use: LimitUse) -> bool:
    return use.used >= use.limit.value
