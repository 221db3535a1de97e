"""Programs of operators that call the management API."""

from collections.abc import Collection
from itertools import count

import httpx

from gateway.db import Database
from gateway.operator_administration import issue_operator_key
from gateway.operators.scopes import OperatorScope
from tests.builders.store import PEPPER
from tests.builders.stored_gateway import client_of

ALL_OPERATOR_SCOPES = tuple(OperatorScope)
_robot_numbers = count(1)


async def operator_secret(
    database: Database,
    *,
    name: str | None = None,
    scopes: Collection[OperatorScope] = ALL_OPERATOR_SCOPES,
) -> str:
    """A new operator key."""
    name = name or f"robot-{next(_robot_numbers)}"
    return (await issue_operator_key(database, PEPPER, "test", name, scopes=scopes)).secret


async def operator_client(
    database: Database,
    url: str,
    *,
    name: str | None = None,
    scopes: Collection[OperatorScope] = ALL_OPERATOR_SCOPES,
) -> httpx.AsyncClient:
    """A client with a new operator key."""
    return client_of(url, await operator_secret(database, name=name, scopes=scopes))
