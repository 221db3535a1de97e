"""Who pays for a request, as bytes that travel with it: to the engine, to its records and to the journal.

Whoever finds such bytes can charge the request, even when the process that let it in is gone.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from engine.protocol import RequestClass
from gateway.quotas.policy import BucketId
from gateway.tenants.ids import KeyId, ProjectId, TenantId

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Account(msgspec.Struct, frozen=True, array_like=True):
    """One request's payer. `admitted_us` is Unix time; the buckets count its tokens, or it as a request."""

    tenant: TenantId
    project: ProjectId
    key: KeyId
    model: str
    request_class: RequestClass
    admitted_us: int
    token_buckets: tuple[BucketId, ...] = ()
    request_buckets: tuple[BucketId, ...] = ()

    @property
    def admitted_at(self) -> datetime:
        """The moment that, with the request's id, names its event in the ledger."""
        return moment(self.admitted_us)


def moment(unix_us: int) -> datetime:
    """Unix time in microseconds, exactly."""
    return EPOCH + timedelta(microseconds=unix_us)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Account)


def encode(account: Account) -> bytes:
    """The bytes."""
    return _encoder.encode(account)


def decode(account: bytes) -> Account | None:
    """What the bytes say; None for those that are no account: of a gateway that sends none, say."""
    try:
        return _decoder.decode(account)
    except msgspec.DecodeError:
        return None
