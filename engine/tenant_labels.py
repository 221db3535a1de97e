"""Which tenants a metric tells apart: so many and no more, however many there are."""

from typing import Final

MAX_TENANT_LABELS: Final = 100
OTHER: Final = "other"


class TenantLabels:
    """Folds tenants' names into at most `most` labels and `other`. A name keeps its label for good."""

    def __init__(self, most: int = MAX_TENANT_LABELS) -> None:
        self._most = most
        self._seen: set[str] = set()

    def fold(self, name: str) -> str:
        """The label of the tenant with this name."""
        if name not in self._seen:
            if len(self._seen) >= self._most:
                return OTHER
            self._seen.add(name)
        return name
