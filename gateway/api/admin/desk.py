"""Who asks something of the management API, and what their question is answered from."""

from dataclasses import dataclass, field
from typing import Any

from fastapi import Depends, Request

from gateway.api.context import context_of
from gateway.api.services import services_of
from gateway.db import Database
from gateway.operators.scopes import OperatorScope


@dataclass(frozen=True, kw_only=True)
class Desk:
    """One operator's program with the right to what it asks. `actor` is its name in the audit trail."""

    actor: str
    database: Database
    key_pepper: bytes = field(repr=False)


def desk_for(scope: OperatorScope) -> Any:
    """The dependency of a route that needs this scope: 401 without an operator key, 403 without the scope.

    It comes before the body is read: strangers do not decide how much that is.
    """

    async def open_desk(request: Request) -> Desk:
        management = services_of(request.scope).management
        caller = await management.operator_keys.authenticate(context_of(request.scope).authorization)
        caller.require(scope)
        return Desk(actor=caller.actor, database=management.database, key_pepper=management.key_pepper)

    return Depends(open_desk)
