"""A number for how a prompt begins, by which prompts that begin alike are neighbours. Pure."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

NEAR_TOKENS: Final = 32
FAR_TOKENS: Final = 64
_HALF_BYTES: Final = 4


def prefix_of(prompt_ids: Sequence[int]) -> int:
    """A signed 64-bit number: its upper half is equal for the same 32 first tokens, all of it for 64."""
    first = array("Q", prompt_ids[:FAR_TOKENS])
    return int.from_bytes(_digest(first[:NEAR_TOKENS]) + _digest(first), signed=True)


def _digest(ids: "array[int]") -> bytes:
    return blake2b(ids.tobytes(), digest_size=_HALF_BYTES).digest()
