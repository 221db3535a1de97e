"""What a weight may be: of a tenant, of a project within its tenant, of a key within its project."""

from typing import Final

from gateway.tenants.errors import BadValue

# Beyond a factor of a million nobody shares; sums and products of weights stay numbers on every way.
LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1_000.0


def check_weight(weight: float) -> None:
    """Raises BadValue for what is no share."""
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise BadValue(f"A weight must be {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}.")
