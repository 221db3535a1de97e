"""What this replica has been lent of one bucket, and who holds it. It knows no store.

granted ── lent by the store, as it last said
  ├─ held     by live requests
  ├─ spent    used for good, and the store does not know yet
  ├─ giving   on its way back to the store
  └─ free     the next request may have it
"""

import time

from gateway.quotas.limits import Counting, QuotaLimit
from gateway.quotas.policy import BucketId, Return

NOTHING = Return(spent=0.0, given=0.0)
TICKS_AHEAD = 2.0  # so much of the demand of the last two ticks is kept


class Credit:
    """One bucket's loan. `window_ends_at` is on the monotonic clock; None: it has no window."""

    def __init__(self, limit: QuotaLimit, bucket: BucketId, *, window_ends_at: float | None) -> None:
        self.limit = limit
        self.bucket = bucket
        self.window_ends_at = window_ends_at
        self.granted = 0.0
        self.held = 0.0
        self.spent = 0.0
        self.is_retired = False  # later requests are not let in by it
        self.is_spoken_for = False  # what is free is promised to requests that ask the store for the rest
        self.is_wanted = False  # another replica refuses requests for want of it
        self.left_elsewhere = 0.0  # in the store and idle on other replicas, as last heard
        self._told = NOTHING
        self._demand = 0.0
        self._demand_before = 0.0

    @property
    def pool(self) -> float:
        """What is lent and not in use."""
        return self.granted - self.held - self.spent - self._told.given

    @property
    def free(self) -> float:
        """What the next request may take."""
        return 0.0 if self.is_spoken_for else self.pool

    @property
    def wish(self) -> float:
        """How much should be free here to be able to admit at once: about what a second asks for."""
        if self.is_wanted or self.is_retired:
            return 0.0
        return TICKS_AHEAD * (self._demand + self._demand_before)

    @property
    def seconds_left(self) -> float | None:
        """Of its window."""
        return None if self.window_ends_at is None else max(0.0, self.window_ends_at - time.monotonic())

    @property
    def is_idle(self) -> bool:
        """Whether nothing here needs to be told or kept."""
        return not (self.granted or self.held or self.spent)

    def hold(self, amount: float) -> None:
        """A live request takes so much."""
        self.held += amount
        self._demand += amount

    def end(self, *, held: float, used: float) -> float:
        """A live request is over: of what it held, `used` was used. What that spends: slots come back."""
        self.held -= held
        spent = 0.0 if self.limit.counting is Counting.SLOTS else used
        self.spent += spent
        return spent

    def tick(self, *, now: float) -> None:
        """A span of demand is over, and perhaps the window."""
        self._demand_before, self._demand = self._demand, 0.0
        if self.window_ends_at is not None and now >= self.window_ends_at:
            self.is_retired = True

    def tell(self, *, gives: bool) -> Return:
        """What to tell the store; the same again until it is known to have arrived."""
        if self._told == NOTHING:
            surplus = max(0.0, self.free - self.wish) if gives else 0.0
            self._told = Return(spent=self.spent, given=surplus)
        return self._told

    def arrived(self, *, granted: float) -> None:
        """The store has been told; this is what it lends now."""
        self.spent -= self._told.spent
        self._told = NOTHING
        self.granted = granted
