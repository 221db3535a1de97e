"""What became of a sequence: one type for each thing that can happen."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from engine.core.sequence import EndReason, Sequence, WaitReason


class RefusalReason(Enum):
    """Why a request never ran: the part of the wire's `AdmissionReason` that the core can decide."""

    QUEUE_FULL = "queue_full"
    TENANT_QUEUE_FULL = "tenant_queue_full"
    KV_NEVER_FITS = "kv_never_fits"
    CONTEXT_TOO_LONG = "context_too_long"
    OUTPUT_TOO_LONG = "output_too_long"
    LONG_CONTEXT_DEGRADED = "long_context_degraded"
    RATE_SHARE = "rate_share"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    WAITING_TIMEOUT = "waiting_timeout"
    DRAINING = "draining"
    INVALID_REQUEST = "invalid_request"


@dataclass(frozen=True)
class Refusal:
    """Why a request is not taken, with a sentence for the person who sent it.

    `retry_after_seconds` when more is known than "soon"; `wait_reason` is what it last waited for.
    """

    reason: RefusalReason
    detail: str
    retry_after_seconds: float | None = None
    wait_reason: WaitReason | None = None


class Sampled(NamedTuple):
    """Tokens that a step brought for a running sequence, and how long it had waited for them.

    `waited_seconds` counts from the sequence's arrival for its first token, from the token before for others.
    A named tuple because a step makes hundreds of them.
    """

    sequence: Sequence
    token_ids: tuple[int, ...]
    waited_seconds: float
    is_first: bool


@dataclass(frozen=True)
class Ended:
    """The sequence ran and is over; its blocks are free."""

    sequence: Sequence
    reason: EndReason


@dataclass(frozen=True)
class Refused:
    """The sequence never ran."""

    sequence: Sequence
    refusal: Refusal


@dataclass(frozen=True)
class Broken:
    """Computing the sequence failed; its blocks are free."""

    sequence: Sequence
    error: str


Outcome = Sampled | Ended | Refused | Broken
