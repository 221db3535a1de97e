"""What a weight may be: of a tenant, of a project within its tenant, of a key within its project."""

from gateway.tenants.errors import BadValue


def check_weight(weight: float) -> None:
    """Raises BadValue for what is no share."""
    if not 0 < weight < float("inf"):
        raise BadValue("A weight must be a number above 0.")
