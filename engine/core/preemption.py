"""Who gives way when room is short. Pure."""

from collections.abc import Callable, Iterable

from engine.core.sequence import Sequence


def oldest_interactive(started: Iterable[Sequence]) -> Sequence | None:
    """The one that is never made to give way: so something always comes to its end."""
    interactive = (sequence for sequence in started if sequence.is_interactive)
    return min(interactive, key=lambda sequence: (sequence.arrived_at, sequence.id), default=None)


def victim(
    candidates: Iterable[Sequence],
    *,
    virtual: Callable[[Sequence], float],
    spared: tuple[Sequence | None, ...] = (),
) -> Sequence | None:
    """Offline before interactive, then of the tenant most over its share, then the newest.

    `virtual` is the fair-share counter of a sequence's tenant.
    """
    return max(
        (sequence for sequence in candidates if sequence not in spared),
        key=lambda sequence: _claim(sequence, virtual),
        default=None,
    )


def weaker(
    candidates: Iterable[Sequence], beneficiary: Sequence, *, virtual: Callable[[Sequence], float]
) -> list[Sequence]:
    """Those who give way before `beneficiary` does."""
    claim = _claim(beneficiary, virtual)
    return [sequence for sequence in candidates if _claim(sequence, virtual) > claim]


def _claim(sequence: Sequence, virtual: Callable[[Sequence], float]) -> tuple[bool, float, float, str]:
    """The greatest gives way first."""
    return not sequence.is_interactive, virtual(sequence), sequence.arrived_at, sequence.id
