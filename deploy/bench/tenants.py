"""Reads `NAME=KEY` and `NAME=KEY:WEIGHT`. Pure."""

from math import isfinite

from deploy.bench.workload import Tenant


def parse_tenant(text: str) -> Tenant:
    """Raises ValueError with one line that shows how to write it, and not the key."""
    name, equals, rest = text.partition("=")
    key, colon, weight = rest.rpartition(":")
    if not colon:
        key, weight = rest, "1"
    if not name or not equals or not key:
        raise ValueError("write NAME=KEY, or NAME=KEY:WEIGHT")
    try:
        number = float(weight)
    except ValueError:
        number = 0.0
    if not isfinite(number) or number <= 0:
        raise ValueError(f"the weight of {name} must be a number above 0: NAME=KEY:WEIGHT")
    return Tenant(name=name, key=key, weight=number)
