"""What the management API works with: who may ask, and a way to the store that inference does not share."""

from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from gateway.db import Database
from gateway.operators.key_service import OperatorKeys
from gateway.operators.operator_key import OperatorCaller

NUM_CONNECTIONS: Final = 2
STATEMENT_TIMEOUT_MS: Final = 2_000


class OperatorAuthenticator(Protocol):
    """Knows operator keys (`gateway.operators.key_service.OperatorKeys`)."""

    async def authenticate(self, authorization: str | None) -> OperatorCaller:
        """Whose program this is. Raises InvalidApiKey or StoreUnavailable."""


@dataclass(frozen=True, kw_only=True)
class Management:
    """Its pool is small and its statements end soon: no question asked here keeps a request waiting."""

    database: Database
    key_pepper: bytes = field(repr=False)
    operator_keys: OperatorAuthenticator

    @classmethod
    def connect(cls, database_url: str, key_pepper: bytes) -> Self:
        """Opens no connection before it is asked something."""
        database = Database.connect(
            database_url,
            application_name="sluice management",
            pool_size=NUM_CONNECTIONS,
            statement_timeout_ms=STATEMENT_TIMEOUT_MS,
        )
        return cls(database=database, key_pepper=key_pepper, operator_keys=OperatorKeys(database, key_pepper))
