"""Until when a key may be said to let somebody in."""

from datetime import UTC, datetime
from typing import Final

from gateway.tenants.errors import BadValue

LAST_YEAR: Final = 9998  # the store knows later moments, which a datetime in another time zone cannot hold


def check_expiry(expires_at: datetime | None) -> None:
    """Raises BadValue for a moment that is no end for a key; None: it never ends."""
    if expires_at is None:
        return
    if expires_at.tzinfo is None or expires_at <= datetime.now(UTC) or expires_at.year > LAST_YEAR:
        raise BadValue(f"A key's expiry must be in the future, by {LAST_YEAR}, and name its time zone.")
