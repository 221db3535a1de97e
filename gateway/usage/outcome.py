"""How an admitted request ended: a closed set, the same in the ledger, metrics and pages."""

from enum import StrEnum


class Outcome(StrEnum):
    """Every admitted request ends in exactly one of these."""

    FINISHED = "finished"  # stopped by itself or at its length
    CANCELLED = "cancelled"  # its client left
    DEADLINE = "deadline"  # its whole time ran out
    REFUSED = "refused"  # admitted by the gateway, turned away by the engine
    FAILED = "failed"  # an error of ours
    LOST = "lost"  # its gateway died; usage is what the engines still knew
    IN_DOUBT = "in_doubt"  # its engine died, too; usage is the most that its client can have got
