"""What became of a sequence: one type for each thing that can happen."""

from dataclasses import dataclass
from enum import Enum

from engine.core.sequence import EndReason, Sequence


class RefusalReason(Enum):
    """Why a request never ran: the part of the wire's `AdmissionReason` that the core can decide."""

    QUEUE_FULL = "queue_full"
    KV_NEVER_FITS = "kv_never_fits"
    CONTEXT_TOO_LONG = "context_too_long"
    OUTPUT_TOO_LONG = "output_too_long"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    WAITING_TIMEOUT = "waiting_timeout"
    DRAINING = "draining"
    INVALID_REQUEST = "invalid_request"


@dataclass(frozen=True)
class Refusal:
    """Why a request is not taken, with a sentence for the person who sent it."""

    reason: RefusalReason
    detail: str


@dataclass(frozen=True)
class Sampled:
    """Tokens that a step brought for a running sequence, and how long it had waited for them.

    `waited_seconds` counts from the sequence's arrival for its first token, from the token before for others.
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
