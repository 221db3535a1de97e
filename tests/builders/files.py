"""Files of tenants, over HTTP and beside it."""

from pathlib import Path
from typing import Any

from sqlalchemy import text

from gateway.batches.status import BatchStatus
from gateway.db import Database
from tests.builders.store import Customer
from tests.builders.stored_gateway import client_of


async def upload(url: str, secret: str, content: bytes, *, filename: str = "in.jsonl", **form: Any) -> str:
    """The id of a file that was stored."""
    async with client_of(url, secret) as client:
        response = await client.post(
            "/v1/files", data={"purpose": "batch", **form}, files={"file": (filename, content)}
        )
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


def on_disk(directory: Path) -> list[Path]:
    """All that lies in a store's folder, whole or not."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


async def age(database: Database, file_id: str, by: str) -> None:
    """Makes a file older, and its expiry earlier, by an interval."""
    async with database.system_transaction() as connection:
        await connection.execute(
            text(
                "UPDATE file SET created_at = created_at - CAST(:by AS interval), "
                "expires_at = expires_at - CAST(:by AS interval) WHERE id = :id"
            ),
            {"by": by, "id": file_id},
        )


async def add_batch(database: Database, customer: Customer, file_id: str) -> None:
    """A batch, `batch_1`, that reads a file."""
    async with database.system_transaction() as connection:
        await connection.execute(
            text(
                "INSERT INTO batch (id, tenant_id, project_id, key_id, endpoint, input_file_id, input_blob, "
                "completion_window, expires_at) VALUES ('batch_1', :tenant, :project, 'key', "
                "'/v1/completions', :file, 'blob', '24h', now())"
            ),
            {"tenant": customer.tenant.id, "project": customer.caller.project, "file": file_id},
        )


async def set_batch_status(database: Database, status: BatchStatus) -> None:
    """Where `batch_1` is."""
    async with database.system_transaction() as connection:
        await connection.execute(text("UPDATE batch SET status = :status"), {"status": status.value})
