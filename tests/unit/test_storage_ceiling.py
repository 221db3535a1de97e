"""How much of files may be added, and which limit says so."""

from engine.protocol import RequestClass
from gateway.quotas.limits import LimitId, QuotaKind, QuotaLimit, Scope
from gateway.quotas.storage import StorageOwner, storage_ceiling
from gateway.tenants.ids import KeyId, ProjectId, TenantId

OWNER = StorageOwner(TenantId("ten_1"), "acme", ProjectId("proj_1"), KeyId("key_1"))
STORED = {ProjectId("proj_1"): 30, ProjectId("proj_2"): 50}


def limit(scope: Scope, scope_id: str, value: int, **more: object) -> QuotaLimit:
    values = {"kind": QuotaKind.FILE_STORAGE_BYTES, **more}
    return QuotaLimit(
        id=LimitId(1), tenant=OWNER.tenant, scope=scope, scope_id=scope_id, value=value, **values
    )


def room(*limits: QuotaLimit) -> int:
    return storage_ceiling(limits, STORED, OWNER, default=100).room


def test_a_tenant_without_a_limit_has_the_default() -> None:
    assert room() == 20


def test_a_tenants_own_limit_takes_the_place_of_the_default() -> None:
    assert room(limit(Scope.TENANT, "ten_1", 1_000)) == 920
    assert room(limit(Scope.TENANT, "ten_1", 70)) == -10


def test_the_limit_with_least_room_binds_and_is_named() -> None:
    ceiling = storage_ceiling([limit(Scope.PROJECT, "proj_1", 45)], STORED, OWNER, default=100)
    assert (ceiling.room, ceiling.whose) == (15, "project proj_1 of organization acme")


def test_a_key_may_add_to_its_project_up_to_its_limit() -> None:
    assert room(limit(Scope.KEY, "key_1", 31)) == 1


def test_limits_of_others_and_of_other_things_do_not_bind() -> None:
    assert (
        room(
            limit(Scope.PROJECT, "proj_2", 0),
            limit(Scope.KEY, "key_2", 0),
            limit(Scope.TENANT, "ten_1", 0, kind=QuotaKind.TOKENS_PER_DAY),
            limit(Scope.TENANT, "ten_1", 0, request_class=RequestClass.INTERACTIVE),
            limit(Scope.TENANT, "ten_1", 0, model="tiny"),
        )
        == 20
    )
    assert room(limit(Scope.TENANT, "ten_1", 80, request_class=RequestClass.OFFLINE)) == 0
