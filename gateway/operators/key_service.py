"""Tells whose program is calling the management API, from the Authorization header.

What cannot be a key is refused without SQL. What the store said of a key is kept for a second, which is also
how long a revocation may take to bind; only the answers of the store are kept.
"""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.db import Database
from gateway.errors import InvalidApiKey
from gateway.keys.bearer import operator_key
from gateway.keys.secret import MAX_CHARACTERS, digest, public_id, redact
from gateway.operators import key_queries as queries
from gateway.operators.key_queries import OperatorKeyRecord
from gateway.operators.operator_key import OperatorCaller

KEPT_SECONDS: Final = 1.0
MAX_KEPT: Final = 1_000

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Whom a key lets in, or why nobody. True until `until`, on the monotonic clock."""

    outcome: OperatorCaller | str
    until: float


class OperatorKeys:
    """Checks operator keys for one process. `pepper` is the server's own secret."""

    def __init__(self, database: Database, pepper: bytes, *, clock: Clock = time.monotonic) -> None:
        self._database = database
        self._pepper = pepper
        self._clock = clock
        self._answers: dict[bytes, _Answer] = {}

    async def authenticate(self, authorization: str | None) -> OperatorCaller:
        """Whose key this is. Raises InvalidApiKey, or StoreUnavailable when it cannot be known."""
        value = operator_key(authorization)
        if len(value) > MAX_CHARACTERS or public_id(value) is None:
            raise InvalidApiKey(_incorrect(value))
        presented = digest(value, pepper=self._pepper)
        answer = self._answers.get(presented)
        if answer is None or self._clock() >= answer.until:
            answer = await self._ask_store(value, presented)
        if isinstance(answer.outcome, str):
            raise InvalidApiKey(answer.outcome)
        return answer.outcome

    async def _ask_store(self, value: str, presented: bytes) -> _Answer:
        until = self._clock() + KEPT_SECONDS  # from before the store looked: it may change right after
        key = public_id(value)
        assert key is not None
        async with self._database.system_transaction() as connection:
            record = await queries.record(connection, key)
            outcome = _judge(record, value, presented)
            if isinstance(outcome, OperatorCaller):
                await queries.mark_used(connection, key)
        answer = _Answer(outcome=outcome, until=until)
        self._keep(presented, answer)
        return answer

    def _keep(self, presented: bytes, answer: _Answer) -> None:
        self._answers.pop(presented, None)
        if len(self._answers) >= MAX_KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[presented] = answer


def _judge(record: OperatorKeyRecord | None, value: str, presented: bytes) -> OperatorCaller | str:
    """What the store's answer means. Only who holds the whole secret learns what became of the key."""
    if record is None or not hmac.compare_digest(record.digest, presented):
        return _incorrect(value)
    if record.is_revoked:
        return f"The operator key {redact(value)} has been revoked."
    if record.is_expired:
        return f"The operator key {redact(value)} has expired."
    return OperatorCaller(name=record.name, scopes=record.scopes)


def _incorrect(value: str) -> str:
    return f"Incorrect operator key provided: {redact(value)}."
