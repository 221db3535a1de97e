"""How the limits behind a request stand, for the headers of its answer."""

from gateway.quotas.credit import Credit
from gateway.quotas.limits import QuotaLimit, Unit
from gateway.quotas.refusals import limit_name, reset_seconds
from gateway.quotas.reservation import RateState
from gateway.quotas.wallet import Hold


def tightest(hold: Hold, unit: Unit) -> RateState | None:
    """The limit of which least is left, for its size; None: nothing of that unit is limited."""
    credits = [credit for credit in hold.parts if credit.limit.unit is unit]
    if not credits:
        return None
    credit = min(credits, key=lambda one: remaining(one) / max(1, one.limit.value))
    left = remaining(credit)
    return RateState(
        limit=credit.limit.value,
        remaining=left,
        reset_seconds=reset_seconds(credit.limit, remaining=left, seconds_left=credit.seconds_left),
        name=limit_name(credit.limit),
    )


def shortest(hold: Hold) -> QuotaLimit | None:
    """The token limit that has least left."""
    credits = hold.token_credits
    return min(credits, key=remaining).limit if credits else None


def remaining(credit: Credit) -> int:
    """What is left of a limit, here and elsewhere; what live requests hold is not."""
    return max(0, min(credit.limit.value, int(credit.pool + credit.left_elsewhere)))
