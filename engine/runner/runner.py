"""The seam between deciding and computing: what every runner offers the engine's loop."""

from typing import Any, Protocol

from engine.core.step import StepPlan, StepResult


class Runner(Protocol):
    """Computes plans. Between `launch` and the end of `collect` others may run: it holds no interpreter lock.

    What `launch` returns is the runner's own: the loop only hands it back.
    """

    def launch(self, plan: StepPlan) -> Any:
        """Makes `plan` ready, and starts it where something else computes, as a GPU does."""

    def collect(self, in_flight: Any) -> StepResult:
        """The result of a launched plan."""
