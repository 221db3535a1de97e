"""How much may be stored, for whom. Pure.

Files belong to projects. So a limit of a key is of what there may be in its project when that key adds to it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.protocol import RequestClass
from gateway.errors import LimitReached
from gateway.quotas.limits import QuotaKind, QuotaLimit, Scope
from gateway.tenants.ids import KeyId, ProjectId, TenantId


@dataclass(frozen=True)
class StorageOwner:
    """Who adds to what is stored."""

    tenant: TenantId
    tenant_name: str
    project: ProjectId
    key: KeyId


@dataclass(frozen=True, kw_only=True)
class StorageCeiling:
    """At most `most` bytes; `used` of them are."""

    most: int
    used: int
    whose: str

    @property
    def room(self) -> int:
        """What may be added."""
        return self.most - self.used

    def check(self, num_bytes: int) -> None:
        """Raises LimitReached where so many bytes more are too many."""
        if num_bytes > self.room:
            raise self.reached(num_bytes)

    def reached(self, num_bytes: int) -> LimitReached:
        """What to say of so many bytes more; waiting does not help."""
        return LimitReached(
            f"Storage limit reached for {self.whose}: Limit {self.most} bytes, Used {self.used}, "
            f"Requested {num_bytes}. Delete files, or ask for a higher limit.",
            limit_type="insufficient_quota",
            code="storage_limit_reached",
            retry_after_seconds=None,
            should_retry=False,
        )


def storage_ceiling(
    limits: Iterable[QuotaLimit], stored: Mapping[ProjectId, int], owner: StorageOwner, *, default: int
) -> StorageCeiling:
    """The ceiling that leaves least room to one more file. A tenant without a limit has `default`."""
    own = {Scope.TENANT: owner.tenant, Scope.PROJECT: owner.project, Scope.KEY: owner.key}
    values = [
        (limit.scope, limit.value)
        for limit in limits
        if _is_of_files(limit) and limit.scope_id == own[limit.scope]
    ]
    if not any(scope is Scope.TENANT for scope, _ in values):
        values.append((Scope.TENANT, default))
    ceilings = [_ceiling(scope, value, stored, owner) for scope, value in values]
    return min(ceilings, key=lambda ceiling: ceiling.room)


def _is_of_files(limit: QuotaLimit) -> bool:
    """Files are for offline work, and for no model before they are read."""
    is_for_files = limit.model is None and limit.request_class in (None, RequestClass.OFFLINE)
    return limit.kind is QuotaKind.FILE_STORAGE_BYTES and is_for_files


def _ceiling(scope: Scope, most: int, stored: Mapping[ProjectId, int], owner: StorageOwner) -> StorageCeiling:
    whole = f"organization {owner.tenant_name}"
    in_project = stored.get(owner.project, 0)
    match scope:
        case Scope.TENANT:
            return StorageCeiling(most=most, used=sum(stored.values()), whose=whole)
        case Scope.PROJECT:
            return StorageCeiling(most=most, used=in_project, whose=f"project {owner.project} of {whole}")
        case Scope.KEY:
            return StorageCeiling(most=most, used=in_project, whose=f"API key {owner.key} of {whole}")
