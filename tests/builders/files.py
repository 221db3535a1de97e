"""Files of tenants, over HTTP and beside it."""

from pathlib import Path
from typing import Any

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
