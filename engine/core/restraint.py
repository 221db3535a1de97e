"""The limits in force: those that operators want, less what the guardrails take away for a while."""

from dataclasses import replace

from engine.core.guardrails import Restrictions
from engine.core.limits import Limits

BUDGETS = ("max_num_seqs", "max_num_batched_tokens", "max_num_prefill_tokens", "prefill_chunk_size")


class Restraint:
    """Above level 0 of the guardrails no budget rises; from some level on, budgets are scaled down."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.restrictions = Restrictions(level=0)
        self._wanted = limits
        self._ceiling = limits

    def want(self, limits: Limits) -> None:
        """What operators want from now on."""
        self._wanted = limits
        self._settle()

    def restrict(self, restrictions: Restrictions) -> None:
        """What the guardrails take."""
        if not self.restrictions.forbids_rises:
            self._ceiling = self.limits
        self.restrictions = restrictions
        self._settle()

    def _settle(self) -> None:
        limits = self._wanted
        if self.restrictions.forbids_rises:
            lower = {name: min(getattr(limits, name), getattr(self._ceiling, name)) for name in BUDGETS}
            limits = replace(limits, **lower)
        scale = self.restrictions.limit_scale
        if scale < 1:
            limits = _scaled(limits, scale)
        self.limits = limits


def _scaled(limits: Limits, scale: float) -> Limits:
    num_seqs = max(1, int(scale * limits.max_num_seqs))
    return replace(
        limits,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(num_seqs, int(scale * limits.max_num_batched_tokens)),
        max_num_prefill_tokens=max(1, int(scale * limits.max_num_prefill_tokens)),
    )
