"""Names of blobs: `<tenant>/<random>`, and nothing that leads anywhere else. Pure but for the randomness."""

import re
import secrets
from typing import Final

from gateway.files.store import BlobMissing
from gateway.tenants.ids import TenantId

_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_RANDOM: Final = re.compile(r"[0-9a-f]{32}")


def new_blob_name(tenant: TenantId) -> str:
    """A name that no blob has."""
    if _TENANT.fullmatch(tenant) is None:
        raise ValueError(f"no folder can be named after {tenant!r}")
    return f"{tenant}/{secrets.token_hex(16)}"


def is_blob_name(name: str) -> bool:
    """Whether a blob can be called so."""
    tenant, _, random = name.partition("/")
    return _TENANT.fullmatch(tenant) is not None and _RANDOM.fullmatch(random) is not None


def check_blob_name(name: str) -> None:
    """Raises BlobMissing for what is no blob's name."""
    if not is_blob_name(name):
        raise BlobMissing(f"{name!r} is no blob's name")
