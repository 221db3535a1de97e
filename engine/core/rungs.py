"""The ladder of the guardrails: what each rung takes away, in facts and words. Knows not when to climb it."""

from dataclasses import dataclass
from enum import IntEnum

LIMIT_SCALE = 0.7


class Rung(IntEnum):
    """How much is given up. Each rung includes those below it; the last three act on interactive work."""

    NORMAL = 0
    PAUSE_OFFLINE = 1
    PREEMPT_OFFLINE = 2
    REFUSE_LONG_CONTEXT = 3
    SCALE_LIMITS = 4
    REFUSE_OVER_SHARE = 5


ENTERED = {
    Rung.PAUSE_OFFLINE: "offline work is paused",
    Rung.PREEMPT_OFFLINE: "running offline work is preempted",
    Rung.REFUSE_LONG_CONTEXT: "long prompts are refused",
    Rung.SCALE_LIMITS: f"limits are scaled down to {LIMIT_SCALE:.0%}",
    Rung.REFUSE_OVER_SHARE: "tenants over their share are refused",
}
LEFT = {
    Rung.PAUSE_OFFLINE: "offline work goes on",
    Rung.PREEMPT_OFFLINE: "running offline work is left alone again",
    Rung.REFUSE_LONG_CONTEXT: "long prompts are taken again",
    Rung.SCALE_LIMITS: "limits are as configured again",
    Rung.REFUSE_OVER_SHARE: "tenants over their share are taken again",
}


@dataclass(frozen=True)
class Restrictions:
    """What a level takes away."""

    level: int

    @property
    def pauses_offline(self) -> bool:
        """No offline sequence is admitted."""
        return self.level >= Rung.PAUSE_OFFLINE

    @property
    def preempts_offline(self) -> bool:
        """Running offline sequences give their place and blocks back."""
        return self.level >= Rung.PREEMPT_OFFLINE

    @property
    def refuses_long_context(self) -> bool:
        """New prompts above the threshold are refused."""
        return self.level >= Rung.REFUSE_LONG_CONTEXT

    @property
    def limit_scale(self) -> float:
        """What batch limits and budgets are multiplied by."""
        return LIMIT_SCALE if self.level >= Rung.SCALE_LIMITS else 1.0

    @property
    def refuses_over_share(self) -> bool:
        """New interactive requests of tenants over their share are refused."""
        return self.level >= Rung.REFUSE_OVER_SHARE

    @property
    def forbids_rises(self) -> bool:
        """No budget and no batch limit may grow."""
        return self.level > Rung.NORMAL
