"""The seam between deciding and computing: what every runner offers the engine's loop."""

from typing import Any, Protocol

from engine.core.step import StepPlan, StepResult


class Runner(Protocol):
    """Computes plans. `launch` may return before the work is done; `collect` waits for it.

    `InFlight` is the runner's own: the loop only hands it back.
    """

    def launch(self, plan: StepPlan) -> Any:
        """Starts computing `plan`."""

    def collect(self, in_flight: Any) -> StepResult:
        """The result of a launched plan."""
