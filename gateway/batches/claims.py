"""All SQL by which a worker gets items, and gives back those that it does not run."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.batches.ids import BatchId, LeaseKey
from gateway.batches.policy import Candidate
from gateway.batches.status import ItemState
from gateway.batches.tables import batch_item
from gateway.tenants.ids import KeyId, TenantId

USUAL_OUTPUT_TOKENS: Final = 128  # of an answer, before a batch has any

# Of each tenant the batch whose window closes first.
_CLAIMABLE: Final = text(
    """
    SELECT DISTINCT ON (b.tenant_id)
        b.id, b.tenant_id, b.key_id, b.endpoint, b.model, b.input_blob, t.weight,
        coalesce(s.served, 0) AS served,
        b.enqueued_tokens::float8 / greatest(b.num_items, 1) + CASE WHEN b.num_completed > 0
            THEN b.completion_tokens::float8 / b.num_completed ELSE :usual_output END AS tokens_per_item
    FROM batch b JOIN tenant t ON t.id = b.tenant_id LEFT JOIN batch_share s ON s.tenant_id = b.tenant_id
    WHERE b.status = 'in_progress' AND b.ends_as IS NULL AND b.expires_at > now()
      AND t.disabled_at IS NULL AND b.model = ANY(:models) AND b.id <> ALL(:passed_over)
      AND EXISTS (
          SELECT 1 FROM batch_item i WHERE i.batch_id = b.id AND i.state = 'pending'
            AND (i.not_before IS NULL OR i.not_before <= now())
      )
    ORDER BY b.tenant_id, b.expires_at, b.id
    """
)

_CLAIM: Final = text(
    """
    WITH picked AS (
        SELECT batch_id, line FROM batch_item
        WHERE batch_id = :batch AND state = 'pending' AND (not_before IS NULL OR not_before <= now())
        ORDER BY prefix, line LIMIT :num
        FOR UPDATE SKIP LOCKED
    )
    UPDATE batch_item i SET state = 'leased', lease_epoch = :epoch, attempt = i.attempt + 1, not_before = NULL
    FROM picked WHERE i.batch_id = picked.batch_id AND i.line = picked.line
    RETURNING i.line, i.custom_id, i.first_byte, i.num_bytes, i.prompt_tokens, i.prefix, i.attempt
    """
)

_GIVE_BACK: Final = text(
    """
    WITH given AS (
        SELECT * FROM json_to_recordset(CAST(:given AS json))
            AS given (batch text, line int, attempt int, after_seconds float8, counts bool)
    ), held AS (
        SELECT i.batch_id, i.line, given.after_seconds, given.counts
        FROM batch_item i JOIN given ON i.batch_id = given.batch AND i.line = given.line
        WHERE i.state = 'leased' AND i.lease_epoch = :epoch AND i.attempt = given.attempt
        ORDER BY i.batch_id, i.line FOR UPDATE OF i
    )
    UPDATE batch_item i SET state = 'pending', lease_epoch = NULL,
        attempt = CASE WHEN held.counts THEN i.attempt ELSE i.attempt - 1 END,
        not_before = now() + make_interval(secs => held.after_seconds)
    FROM held WHERE i.batch_id = held.batch_id AND i.line = held.line
    RETURNING i.batch_id, i.line
    """
)

_CHARGE_SHARES: Final = text(
    """
    INSERT INTO batch_share AS known (tenant_id, served)
    SELECT tenant, served FROM json_each_text(CAST(:shares AS json)) AS shares (tenant, amount),
        LATERAL (SELECT amount::float8 AS served) AS number
    ORDER BY tenant
    ON CONFLICT (tenant_id) DO UPDATE SET served = known.served + excluded.served
    """
)

# Gone, ending, or of a tenant or a key that may not run anything now.
_STOPPED: Final = text(
    """
    SELECT asked.id, coalesce(b.status <> 'in_progress' OR b.ends_as IS NOT NULL, true) AS has_ended
    FROM unnest(CAST(:batches AS text[])) AS asked (id)
    LEFT JOIN batch b ON b.id = asked.id LEFT JOIN tenant t ON t.id = b.tenant_id
    LEFT JOIN api_key k ON k.id = b.key_id
    WHERE b.id IS NULL OR b.status <> 'in_progress' OR b.ends_as IS NOT NULL OR t.disabled_at IS NOT NULL
       OR k.id IS NULL OR k.revoked_at IS NOT NULL OR NOT 'batch' = ANY(k.scopes)
    """
)


@dataclass(frozen=True, kw_only=True)
class Claimable:
    """A batch with lines that may be claimed, and its tenant's place in the fair order."""

    id: BatchId
    key: KeyId
    endpoint: str
    model: str
    input_blob: str
    candidate: Candidate

    @property
    def tenant(self) -> TenantId:
        """Whose it is."""
        return self.candidate.tenant


class ClaimedItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line that this life runs now. Whoever else had it has another `attempt`, or has let go of it."""

    batch: BatchId
    line: int
    custom_id: str
    first_byte: int
    num_bytes: int
    prompt_tokens: int
    attempt: int

    @property
    def lease(self) -> LeaseKey:
        """This very lease of it."""
        return self.batch, self.line, self.attempt


@dataclass(frozen=True, kw_only=True)
class GivenBack:
    """A leased line that is not run to its end. `counts`: whether the attempt was one.

    `share` is what its tenant's share was charged when it was claimed.
    """

    tenant: TenantId
    batch: BatchId
    line: int
    attempt: int
    after_seconds: float
    counts: bool
    share: float

    @property
    def lease(self) -> LeaseKey:
        """Which lease of it."""
        return self.batch, self.line, self.attempt


async def claimable(
    connection: AsyncConnection, *, models: Collection[str], passed_over: Collection[BatchId]
) -> list[Claimable]:
    """One batch of each tenant that has lines to run for one of the models, beside those passed over."""
    rows = await connection.execute(
        _CLAIMABLE,
        {
            "models": sorted(models),
            "passed_over": sorted(passed_over),
            "usual_output": float(USUAL_OUTPUT_TOKENS),
        },
    )
    return [
        Claimable(
            id=BatchId(row["id"]),
            key=KeyId(row["key_id"]),
            endpoint=row["endpoint"],
            model=row["model"],
            input_blob=row["input_blob"],
            candidate=Candidate(
                tenant=TenantId(row["tenant_id"]),
                served=row["served"],
                weight=row["weight"],
                tokens_per_item=row["tokens_per_item"],
            ),
        )
        for row in rows.mappings()
    ]


async def claim(connection: AsyncConnection, batch: BatchId, *, num: int, epoch: int) -> list[ClaimedItem]:
    """Leases at most `num` lines to a life, those whose prompts begin alike together."""
    rows = await connection.execute(_CLAIM, {"batch": batch, "num": num, "epoch": epoch})
    ordered = sorted(rows, key=lambda row: (row.prefix, row.line))  # RETURNING keeps no order
    return [
        ClaimedItem(
            batch=batch,
            line=row.line,
            custom_id=row.custom_id,
            first_byte=row.first_byte,
            num_bytes=row.num_bytes,
            prompt_tokens=row.prompt_tokens,
            attempt=row.attempt,
        )
        for row in ordered
    ]


async def give_back(connection: AsyncConnection, given: Sequence[GivenBack], *, epoch: int) -> None:
    """Lines that this life still holds may be claimed again, and count no more for whom they were claimed."""
    rows = await connection.execute(
        _GIVE_BACK, {"given": msgspec.json.encode(given).decode(), "epoch": epoch}
    )
    back = {(row.batch_id, row.line) for row in rows}
    shares: defaultdict[TenantId, float] = defaultdict(float)
    for one in given:
        if (one.batch, one.line) in back:
            shares[one.tenant] -= one.share
    if any(shares.values()):
        await charge_shares(connection, shares)


async def leased_to(connection: AsyncConnection, *, epoch: int) -> list[GivenBack]:
    """What a life holds, ready to be given back."""
    rows = await connection.execute(
        select(batch_item.c.tenant_id, batch_item.c.batch_id, batch_item.c.line, batch_item.c.attempt).where(
            batch_item.c.state == ItemState.LEASED.value, batch_item.c.lease_epoch == epoch
        )
    )
    return [
        GivenBack(
            tenant=TenantId(tenant),
            batch=BatchId(batch),
            line=line,
            attempt=attempt,
            after_seconds=0.0,
            counts=False,
            share=0.0,  # nobody knows any more
        )
        for tenant, batch, line, attempt in rows
    ]


async def charge_shares(connection: AsyncConnection, tokens_by_weight: Mapping[TenantId, float]) -> None:
    """Moves tenants' counters; by less than nothing where less was used than was thought."""
    await connection.execute(_CHARGE_SHARES, {"shares": msgspec.json.encode(tokens_by_weight).decode()})


async def stopped_among(connection: AsyncConnection, batches: Collection[BatchId]) -> dict[BatchId, bool]:
    """Those of which nothing more is to be begun; whether what runs is to be ended as well."""
    rows = await connection.execute(_STOPPED, {"batches": sorted(batches)})
    return {BatchId(row.id): row.has_ended for row in rows}
