"""Which prompts may find each other in the engines' prefix cache. Pure.

A namespace is a keyed digest that only this server can compute, of a tagged, length-framed name: no client
can choose or guess one, no two names collide by where one ends, and no group is taken for a tenant.
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

TENANT: Final = "tenant"
GROUP: Final = "group"


def namespace_of_tenant(secret: bytes, tenant: str) -> bytes:
    """What keys the cached prompts of one tenant."""
    return _namespace(secret, TENANT, tenant)


def namespace_of_group(secret: bytes, group: str) -> bytes:
    """What keys the cached system prompts of the tenants that agreed to share them."""
    return _namespace(secret, GROUP, group)


def num_common_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts begin with together."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def framed(*parts: str) -> bytes:
    """Parts as bytes that tell where each begins and ends: ("org_1", "2345") is not ("org_12345", "")."""
    return b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)


def _namespace(secret: bytes, kind: str, name: str) -> bytes:
    return hmac.digest(secret, framed("sluice prefix cache", kind, name), hashlib.sha256)
