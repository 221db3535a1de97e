"""Which folder of journals is whose: stores number their lives alike, so each store has a folder of its own.

<folder>/<store>/   its lives (`journal_lives.py`)
<folder>/…          those of other stores: not ours to charge, nor to remove
"""

from pathlib import Path

from gateway.tenants.ids import StoreId


def home_of(folder: Path, store: StoreId) -> Path:
    """Where the lives of a store keep their journals."""
    return folder / store


def of_others(home: Path) -> list[str]:
    """Names of what holds journals beside this home."""
    return sorted(path.name for path in home.parent.iterdir() if path != home and _holds_journals(path))


def _holds_journals(path: Path) -> bool:
    return path.suffix == ".journal" or any(path.glob("*.journal"))
