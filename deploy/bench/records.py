"""What was seen of one request, and what of it can be told at once. Times are seconds of one clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request from the client's side. All `_at` times count from the start of the run.

    `token_times_at` has the arrival of each event with text; several that come in one read share a time.
    `num_cached_tokens` is None where the server does not tell. `error` is the reason it failed: the
    server's own word, `http_503` and the like, or what became of the connection. `is_cancelled`: the client
    left, as its plan said.
    """

    tenant: str
    due_at: float
    started_at: float
    ended_at: float
    token_times_at: Sequence[float] = ()
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int | None = None
    error: str | None = None
    is_cancelled: bool = False
    is_offline: bool = False

    @property
    def is_complete(self) -> bool:
        """It was answered to its end."""
        return self.error is None and not self.is_cancelled

    @property
    def late_seconds(self) -> float:
        """How much later than planned it was sent: the generator's fault, not the server's."""
        return self.started_at - self.due_at

    @property
    def ttft_seconds(self) -> float | None:
        """From sending to the first text."""
        return self.token_times_at[0] - self.started_at if self.token_times_at else None

    @property
    def gaps_seconds(self) -> list[float]:
        """Between events with text."""
        times = self.token_times_at
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def jitter_seconds(self) -> float | None:
        """The longest gap."""
        return max(self.gaps_seconds, default=None)

    @property
    def tpot_seconds(self) -> float | None:
        """From the first text to the last, for each token after the first."""
        if self.num_completion_tokens < 2 or len(self.token_times_at) < 2:
            return None
        return (self.token_times_at[-1] - self.token_times_at[0]) / (self.num_completion_tokens - 1)

    @property
    def e2e_seconds(self) -> float:
        """From sending to the end of the answer."""
        return self.ended_at - self.started_at


OnRecord = Callable[[RequestRecord], None]
"""Told of each request that ended."""
