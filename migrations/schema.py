"""All tables of the product in one metadata: importing a slice's tables registers them."""

from gateway.audit import tables as audit
from gateway.batches import tables as batches
from gateway.db import metadata
from gateway.engine_config import tables as engine_config
from gateway.files import tables as files
from gateway.keys import tables as keys
from gateway.operators import tables as operators
from gateway.quotas import tables as quotas
from gateway.tenants import tables as tenants
from gateway.usage import tables as usage

__all__ = [
    "audit",
    "batches",
    "engine_config",
    "files",
    "keys",
    "metadata",
    "operators",
    "quotas",
    "tenants",
    "usage",
]
