"""The random words behind invites and sessions, and the digests that are stored in their place. Pure."""

import hashlib
import secrets


def new_secret() -> str:
    """256 random bits, safe in a URL, a cookie and a form."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """What the store keeps. The secret has full entropy, so one plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
