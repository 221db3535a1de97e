"""`/admin/v1/keys`: what lets tenants' programs in. A secret is in the answer that made it only."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, UnsetType

from gateway import key_administration
from gateway.api.admin.described import answered, described
from gateway.api.admin.desk import Desk, desk_for
from gateway.api.admin.pages import After, Limit, Named, Page, page_of
from gateway.api.admin.tenants import Weight
from gateway.api.body import read_body
from gateway.key_administration import DEFAULT_OVERLAP, MAX_OVERLAP
from gateway.keys.key import ApiKey, IssuedKey, KeyState, KeyTerms
from gateway.keys.scope import Scope
from gateway.operators.scopes import OperatorScope
from gateway.tenants.ids import KeyId

router = APIRouter(prefix="/keys", tags=["Management: keys"])

Overlap = Annotated[
    int,
    Meta(
        ge=0,
        le=int(MAX_OVERLAP.total_seconds()),
        description="How long the secret before it goes on letting in.",
    ),
]


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to be made. Without `project`: of the tenant's first; without `models`: for all of them."""

    tenant: str
    name: str
    project: str | None = None
    weight: Weight = 1.0
    scopes: list[Scope] = msgspec.field(default_factory=lambda: list(Scope))
    models: list[str] | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None


class KeyChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not named stays. Null lifts: `scopes` for every use, `models` all, `expires_at` without end."""

    name: str | UnsetType = UNSET
    weight: Weight | UnsetType = UNSET
    scopes: list[Scope] | UnsetType | None = UNSET
    models: list[str] | UnsetType | None = UNSET
    expires_at: Annotated[datetime, Meta(tz=True)] | UnsetType | None = UNSET

    def terms(self) -> KeyTerms:
        """Those that are named."""
        terms = KeyTerms()
        if self.name is not UNSET:
            terms["name"] = self.name
        if self.weight is not UNSET:
            terms["weight"] = self.weight
        if self.scopes is not UNSET:
            terms["scopes"] = tuple(Scope if self.scopes is None else self.scopes)
        if self.models is not UNSET:
            terms["models"] = None if self.models is None else tuple(self.models)
        if self.expires_at is not UNSET:
            terms["expires_at"] = self.expires_at
        return terms


class KeyRotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a key gets its next secret."""

    overlap_seconds: Overlap = int(DEFAULT_OVERLAP.total_seconds())


class KeyView(msgspec.Struct, frozen=True):
    """A key without its secret. `previous_expires_at`: until when the secret before a rotation lets in."""

    id: str
    tenant: str
    tenant_name: str
    project: str
    project_name: str
    name: str
    weight: float
    redacted_value: str
    state: KeyState
    scopes: list[Scope]
    models: list[str] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    previous_expires_at: datetime | None
    object: Literal["key"] = "key"


class IssuedKeyView(msgspec.Struct, frozen=True):
    """A key with its new secret, which is shown this once."""

    secret: str
    key: KeyView
    object: Literal["issued_key"] = "issued_key"


SHAPES: Final = (NewKey, KeyChanges, KeyRotation, KeyView, IssuedKeyView, Page[KeyView])


@router.post("", summary="Create a key", **described(IssuedKeyView, body=NewKey, status=201, errors=(404,)))
async def create_key(request: Request, desk: Desk = desk_for(OperatorScope.KEYS_WRITE)) -> Response:
    """Another one each time."""
    body = await read_body(request, NewKey)
    issued = await key_administration.issue_key(
        desk.database,
        desk.key_pepper,
        desk.actor,
        body.tenant,
        name=body.name,
        project=body.project,
        weight=body.weight,
        scopes=body.scopes,
        models=body.models,
        expires_at=body.expires_at,
    )
    return answered(_issued(issued), status=201)


@router.get("", summary="List keys, newest first", **described(Page[KeyView], errors=(404,)))
async def list_keys(
    tenant: Named = None,
    limit: Limit = 20,
    after: After = None,
    desk: Desk = desk_for(OperatorScope.KEYS_READ),
) -> Response:
    """A page of everybody's keys, or of one tenant's."""
    found = await key_administration.page_of_keys(desk.database, tenant, limit=limit + 1, after=after)
    return answered(page_of([_view(key) for key in found], limit=limit))


@router.get("/{key}", summary="Show a key", **described(KeyView, errors=(404,)))
async def show_key(key: str, desk: Desk = desk_for(OperatorScope.KEYS_READ)) -> Response:
    """By its id."""
    return answered(_view(await key_administration.get_key(desk.database, KeyId(key))))


@router.patch(
    "/{key}",
    summary="Change a key's name, weight, scopes, models or expiry",
    **described(KeyView, body=KeyChanges, errors=(404,)),
)
async def change_key(request: Request, key: str, desk: Desk = desk_for(OperatorScope.KEYS_WRITE)) -> Response:
    """Binds within 2 seconds; its secrets stay. A revoked key stays as it is. May be repeated."""
    changes = await read_body(request, KeyChanges)
    changed = await key_administration.change_key(desk.database, desk.actor, KeyId(key), changes.terms())
    return answered(_view(changed))


@router.post(
    "/{key}/rotate",
    summary="Give a key a new secret",
    **described(IssuedKeyView, body=KeyRotation, errors=(404,)),
)
async def rotate_key(request: Request, key: str, desk: Desk = desk_for(OperatorScope.KEYS_WRITE)) -> Response:
    """Another secret each time; the one before goes on for the overlap, an older one ends at once."""
    rotation = await read_body(request, KeyRotation)
    issued = await key_administration.rotate_key(
        desk.database,
        desk.key_pepper,
        desk.actor,
        KeyId(key),
        overlap=timedelta(seconds=rotation.overlap_seconds),
    )
    return answered(_issued(issued))


@router.post("/{key}/revoke", summary="End a key", **described(KeyView, errors=(404,)))
async def revoke_key(key: str, desk: Desk = desk_for(OperatorScope.KEYS_WRITE)) -> Response:
    """Refused everywhere within 2 seconds. May be repeated."""
    found = await key_administration.get_key(desk.database, KeyId(key))
    if found.revoked_at is None:
        found = await key_administration.revoke_key(desk.database, desk.actor, found.id)
    return answered(_view(found))


def _issued(issued: IssuedKey) -> IssuedKeyView:
    return IssuedKeyView(secret=issued.secret, key=_view(issued.key))


def _view(key: ApiKey) -> KeyView:
    now = datetime.now(UTC)
    return KeyView(
        id=key.id,
        tenant=key.tenant,
        tenant_name=key.tenant_name,
        project=key.project,
        project_name=key.project_name,
        name=key.name,
        weight=key.weight,
        redacted_value=key.redacted_value,
        state=key.state(now),
        scopes=list(key.scopes),
        models=None if key.models is None else list(key.models),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
        previous_expires_at=key.overlap_ends_at(now),
    )
