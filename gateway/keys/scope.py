"""What a key may be used for. Every route names the scope that it needs."""

from enum import StrEnum
from typing import Final


class Scope(StrEnum):
    """One kind of use."""

    INFERENCE = "inference"
    BATCH = "batch"
    FILES = "files"
    MODELS_READ = "models.read"
    USAGE_READ = "usage.read"


ALL_SCOPES: Final = frozenset(Scope)
