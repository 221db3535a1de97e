"""A file as its owner knows it: what is said of it, not what is in it."""

from dataclasses import dataclass
from datetime import datetime

from gateway.files.ids import FileId
from gateway.files.purpose import Purpose
from gateway.tenants.ids import ProjectId, TenantId


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file whose bytes are whole, in the file store under `blob`. `expires_at` None: never."""

    id: FileId
    tenant: TenantId
    project: ProjectId
    purpose: Purpose
    filename: str
    num_bytes: int
    sha256: bytes
    blob: str
    created_at: datetime
    expires_at: datetime | None
