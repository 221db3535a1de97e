"""The seam between deciding and computing: what every runner offers the engine's loop."""

from typing import Any, Protocol

from engine.core.step import StepPlan, StepResult


class Runner(Protocol):
    """Computes plans. Other threads may work while `collect` does: it gives up the interpreter lock.

    What `launch` returns is the runner's own: the loop only hands it back.
    """

    def launch(self, plan: StepPlan) -> Any:
        """Makes `plan` ready to be computed; may start it."""

    def collect(self, in_flight: Any) -> StepResult:
        """The result of a launched plan, computed or waited for."""
