"""Random numbers that a seed and a purpose decide: one draw more here changes none elsewhere. Pure."""

from random import Random


def random_for(seed: int, purpose: str) -> Random:
    """A generator of its own for each purpose."""
    return Random(f"{seed}/{purpose}")  # noqa: S311 - a load, no secret
