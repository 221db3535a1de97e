"""Files over real HTTP: listed, read and deleted, by whom they belong to and by nobody else."""

import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import ConflictError, NotFoundError

from gateway import filing
from gateway.administration import set_tenant_enabled
from gateway.batches.status import OPEN, BatchStatus
from gateway.db import Database
from gateway.keys.scope import Scope as KeyScope
from gateway.project_administration import create_project
from tests.builders.file_house import LINES, House, file_house
from tests.builders.files import add_batch, on_disk, set_batch_status, upload
from tests.builders.stored_gateway import until_status

pytestmark = pytest.mark.postgres


@pytest.fixture
async def house(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    async with file_house(database, database_url, tmp_path / "files") as house:
        yield house


async def test_the_official_client_keeps_reads_lists_and_deletes_a_file(house: House) -> None:
    async with house.openai() as client:
        made = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
        assert (made.object, made.bytes, made.filename, made.purpose) == (
            "file",
            len(LINES),
            "in.jsonl",
            "batch",
        )
        assert abs(made.created_at - time.time()) < 60
        assert made.expires_at == made.created_at + 30 * 86_400
        assert (await client.files.wait_for_processing(made.id)).status == "processed"
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == LINES
        assert [file.id async for file in client.files.list()] == [made.id]
        deleted = await client.files.delete(made.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
        with pytest.raises(NotFoundError, match=f"No such File object: {made.id}"):
            await client.files.retrieve(made.id)
    assert on_disk(house.directory) == []


async def test_lists_are_paged_by_age_in_both_directions(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filing, "ROWS_AT_ONCE", 2)
    made = [await upload(house.url, house.customer.secret, b"%d\n" % number) for number in range(5)]
    async with house.openai() as client:
        assert [file.id async for file in client.files.list(limit=2)] == made[::-1]
        assert [file.id async for file in client.files.list(limit=2, order="asc")] == made
        assert [file.id async for file in client.files.list(after=made[2])] == made[1::-1]
        assert [file.id async for file in client.files.list(purpose="batch_output")] == []
        assert [file.id async for file in client.files.list(purpose="assistants")] == []
    async with house.http() as http:
        page = (await http.get("/v1/files", params={"limit": 2})).json()
        empty = (await http.get("/v1/files", params={"after": made[0]})).json()
    assert (page["object"], page["has_more"]) == ("list", True)
    assert (page["first_id"], page["last_id"]) == (made[4], made[3])
    assert empty == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


async def test_a_list_that_cannot_be_is_a_400_that_names_the_culprit(house: House) -> None:
    async with house.http() as http:
        for param, bad in (("limit", "0"), ("limit", "10001"), ("order", "up")):
            response = await http.get("/v1/files", params={param: bad})
            assert response.status_code == 400, (param, bad)
            assert response.json()["error"]["param"] == param, bad


async def test_a_part_of_a_file_can_be_read(house: House) -> None:
    file_id = await upload(house.url, house.customer.secret, LINES)
    async with house.http() as http:
        some, past = [
            await http.get(f"/v1/files/{file_id}/content", headers={"Range": asked})
            for asked in ("bytes=19-", "bytes=38-")
        ]
    assert (some.status_code, some.content) == (206, LINES[19:])
    assert some.headers["content-range"] == "bytes 19-37/38"
    assert (past.status_code, past.headers["content-range"]) == (416, "bytes */38")
    assert past.json()["error"]["type"] == "invalid_request_error"


async def test_content_says_what_it_is(house: House) -> None:
    file_id = await upload(house.url, house.customer.secret, LINES, filename='a"b\\ü.jsonl')
    async with house.http() as http:
        path = f"/v1/files/{file_id}/content"
        whole = await http.get(path, headers={"Accept": "application/binary"})
        head = await http.head(path)
        etag = whole.headers["etag"]
        same = await http.get(path, headers={"Range": "bytes=0-1", "If-Range": etag})
        other = await http.get(path, headers={"Range": "bytes=0-1", "If-Range": '"another"'})
    assert etag == f'"{hashlib.sha256(LINES).hexdigest()}"'
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-disposition"].startswith('attachment; filename="a')
    assert whole.headers["content-disposition"].endswith("%C3%BC.jsonl")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "38")
    assert (same.status_code, other.status_code) == (206, 200)


async def test_an_empty_file_is_a_file(house: House) -> None:
    file_id = await upload(house.url, house.customer.secret, b"")
    async with house.http() as http:
        response = await http.get(f"/v1/files/{file_id}/content")
    assert (response.status_code, response.content) == (200, b"")


async def test_a_key_without_the_scope_is_a_403(house: House) -> None:
    secret = await house.key(scopes=[KeyScope.INFERENCE, KeyScope.BATCH])
    file_id = await upload(house.url, house.customer.secret, LINES)
    async with house.http(secret) as http:
        responses = [
            await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", LINES)}),
            await http.get("/v1/files"),
            await http.get(f"/v1/files/{file_id}"),
            await http.get(f"/v1/files/{file_id}/content"),
            await http.delete(f"/v1/files/{file_id}"),
        ]
    assert [response.status_code for response in responses] == [403] * 5


async def test_another_project_of_the_tenant_finds_nothing(house: House, database: Database) -> None:
    await create_project(database, "test", house.customer.tenant.id, "other")
    file_id = await upload(house.url, house.customer.secret, LINES)
    async with house.http(await house.key(project="other")) as other:
        responses = [
            await other.get(f"/v1/files/{file_id}"),
            await other.get(f"/v1/files/{file_id}/content"),
            await other.delete(f"/v1/files/{file_id}"),
            await other.get("/v1/files", params={"after": file_id}),
        ]
        listed = (await other.get("/v1/files")).json()
    assert [response.status_code for response in responses] == [404] * 4
    assert {response.json()["error"]["message"] for response in responses} == {
        f"No such File object: {file_id}"
    }
    assert listed["data"] == []


async def test_a_disabled_tenant_is_told_nothing_of_its_files(house: House, database: Database) -> None:
    file_id = await upload(house.url, house.customer.secret, LINES)
    await set_tenant_enabled(database, "test", house.customer.tenant.id, enabled=False)
    async with house.http() as http:
        await until_status(http, "GET", f"/v1/files/{file_id}/content", 401)
        await until_status(http, "DELETE", f"/v1/files/{file_id}", 401)


async def test_what_an_unfinished_batch_reads_cannot_be_deleted(house: House, database: Database) -> None:
    file_id = await upload(house.url, house.customer.secret, LINES)
    await add_batch(database, house.customer, file_id)
    async with house.openai() as client:
        for status in OPEN:
            await set_batch_status(database, status)
            with pytest.raises(ConflictError, match="read by batch_1, which has not ended") as refused:
                await client.files.delete(file_id)
            assert refused.value.response.headers["x-should-retry"] == "false"
        await set_batch_status(database, BatchStatus.COMPLETED)
        assert (await client.files.delete(file_id)).deleted
