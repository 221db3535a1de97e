"""How evenly tenants are served: what each got over the last seconds, as one index. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.core.service import TenantLoad

HORIZON_SECONDS: Final = 10.0
MAX_REMEMBERED_TENANTS: Final = 10_000


@dataclass(frozen=True)
class Fairness:
    """Charged tokens per second of each tenant that had work lately, unweighted, and Jain's index of them.

    The index is of the rates divided by the weights; None when nobody was served.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    index: float | None = None


def jain_index(values: Iterable[float]) -> float | None:
    """1 when all values are equal, 1/n when one of n has all; None without a value above 0.

    Jain, Chiu, Hawe: A Quantitative Measure of Fairness and Discrimination, DEC-TR-301, 1984.
    """
    shares = list(values)
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares > 0 else None


class ServiceWindow:
    """Sums what tenants were given over the last ten seconds; each look costs only the tenants it names."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}  # service and when; least recently named first
        self._weights: dict[str, float] = {}
        self._looks: deque[tuple[float, dict[str, float]]] = deque()
        self._given: defaultdict[str, float] = defaultdict(float)
        self._num_looks: Counter[str] = Counter()  # looks of the window in which a tenant had work

    def look(self, rows: Iterable[TenantLoad], now: float) -> dict[str, float]:
        """Takes in what tenants have been given until `now`: the increase of each that has or had work.

        A tenant whose count fell was forgotten meanwhile, so all of its count is new. One that was not named
        for a while was given its increase at some time in between: of that, the window's share is lately.
        """
        increases, lately = {}, {}
        for row in rows:
            before, seen_at = self._last.pop(row.tenant, (0.0, now))
            self._last[row.tenant] = (row.service, now)
            increase = row.service - before if row.service >= before else row.service
            if increase > 0 or row.running or row.waiting:
                increases[row.tenant] = increase
                lately[row.tenant] = increase * HORIZON_SECONDS / max(HORIZON_SECONDS, now - seen_at)
                self._weights[row.tenant] = row.weight
        while len(self._last) > MAX_REMEMBERED_TENANTS:
            del self._last[next(iter(self._last))]
        self._add(now, lately)
        self._drop_before(now - HORIZON_SECONDS)
        return increases

    def fairness(self) -> Fairness:
        """Rates and index over the window as of the last look."""
        rates = {tenant: given / HORIZON_SECONDS for tenant, given in self._given.items()}
        index = jain_index(max(0.0, rate) / self._weights[tenant] for tenant, rate in rates.items())
        return Fairness(rates, index)

    def _add(self, now: float, increases: dict[str, float]) -> None:
        self._looks.append((now, increases))
        for tenant, increase in increases.items():
            self._given[tenant] += increase
            self._num_looks[tenant] += 1

    def _drop_before(self, horizon: float) -> None:
        while self._looks and self._looks[0][0] <= horizon:
            for tenant, increase in self._looks.popleft()[1].items():
                self._given[tenant] -= increase
                self._num_looks[tenant] -= 1
                if self._num_looks[tenant] == 0:
                    del self._given[tenant], self._num_looks[tenant], self._weights[tenant]
