"""What operators may call the things they make."""

from typing import Final

from gateway.tenants.errors import BadValue

MAX_NAME_CHARACTERS: Final = 100


def checked_name(name: str) -> str:
    """The name without the spaces around it. Raises BadValue for what cannot be shown in a line."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise BadValue(f"A name must be 1 to {MAX_NAME_CHARACTERS} printable characters.")
    return name
