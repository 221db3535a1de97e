"""What an API key looks like, and how it is made, recognised and hashed. Pure but for the random source.

    sk-live-AbCdEfGhIjKl-<43 secret characters><6 checksum characters>
            public id     256 random bits       CRC-32 of all before it

The checksum lets typos and guesses be refused without asking the store.
"""

import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field
from typing import Final

from gateway.tenants.ids import KeyId

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PUBLIC_ID_CHARACTERS: Final = 12
SECRET_CHARACTERS: Final = 43  # log2(62) * 43 = 256 bits
CHECKSUM_CHARACTERS: Final = 6
ENVIRONMENT: Final = "live"
MAX_CHARACTERS: Final = 82  # of a whole key
SHAPE: Final = re.compile(
    r"sk-[a-z]{1,16}-(?P<id>[0-9A-Za-z]{12})-[0-9A-Za-z]{43}(?P<checksum>[0-9A-Za-z]{6})"
)


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key just made. The only place where the whole of it exists; its repr does not show it."""

    id: KeyId
    value: str = field(repr=False)


def make_key(environment: str = ENVIRONMENT) -> NewKey:
    """A key that nobody has seen."""
    return renew_key(KeyId(_random_text(PUBLIC_ID_CHARACTERS)), environment)


def renew_key(key: KeyId, environment: str = ENVIRONMENT) -> NewKey:
    """Another secret for the key of this public id."""
    body = f"sk-{environment}-{key}-{_random_text(SECRET_CHARACTERS)}"
    return NewKey(id=key, value=body + _checksum(body))


def public_id(value: str) -> KeyId | None:
    """The id in a well-formed key; None when `value` cannot be one of ours."""
    shape = SHAPE.fullmatch(value)
    if shape is None or _checksum(value[:-CHECKSUM_CHARACTERS]) != shape["checksum"]:
        return None
    return KeyId(shape["id"])


def digest(value: str, *, pepper: bytes) -> bytes:
    """What is stored: without the pepper, whoever can write to the store still cannot make a key."""
    return hmac.digest(pepper, value.encode("utf-8", "surrogatepass"), "sha256")


def redact(value: str) -> str:
    """Enough to tell one's own keys apart, nothing to guess from: `sk-…wXyZ`."""
    return f"sk-…{value[-4:]}" if len(value) >= 12 else "sk-…"


def _random_text(num_characters: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(num_characters))


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_CHARACTERS):
        value, digit = divmod(value, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
