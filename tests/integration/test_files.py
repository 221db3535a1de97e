"""Files over real HTTP, as OpenAI's own client and others send and read them."""

import asyncio
import hashlib
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, ConflictError, NotFoundError, RateLimitError

from gateway import filing
from gateway.administration import set_tenant_enabled
from gateway.batches.status import OPEN, BatchStatus
from gateway.db import Database
from gateway.files.incoming import PENDING_BYTES
from gateway.key_administration import issue_key
from gateway.keys.scope import Scope as KeyScope
from gateway.project_administration import create_project
from gateway.quotas.limits import QuotaKind, Scope
from gateway.settings import FilesSection
from tests.builders.engine_messages import engine_description
from tests.builders.files import add_batch, age, on_disk, set_batch_status, upload
from tests.builders.http_clients import openai_client
from tests.builders.store import PEPPER, Customer, limit_tenant, make_customer
from tests.builders.store_rows import rows
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway, until_status
from tests.fakes.websocket_engine import WebSocketEngine, answer

pytestmark = pytest.mark.postgres

LINES = b'{"custom_id": "a"}\n{"custom_id": "b"}\n'
MAX_FILE_BYTES = 4 * PENDING_BYTES
SETTINGS = {"max_file_bytes": MAX_FILE_BYTES, "max_lines": 10, "silence_seconds": 0.5, "max_uploads": 8}
BEGUN = b"x" * PENDING_BYTES  # as much as goes to the disk before the rest is there
SEATS_OF_ONE = 4  # half of them
BOUNDARY = "sluice-test"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass(frozen=True, kw_only=True)
class House:
    """A gateway that keeps files in `directory`, and one of its customers."""

    url: str
    directory: Path
    customer: Customer
    database: Database

    def http(self, secret: str | None = None) -> httpx.AsyncClient:
        """A client with the customer's key, or another."""
        return client_of(self.url, secret or self.customer.secret)

    def openai(self) -> AsyncOpenAI:
        """The official client, without retries."""
        return openai_client(self.url, self.customer.secret, max_retries=0)

    async def key(self, *, project: str | None = None, scopes: list[KeyScope] | None = None) -> str:
        """One more key of the customer."""
        issued = await issue_key(
            self.database,
            PEPPER,
            "test",
            self.customer.tenant.id,
            name="more",
            project=project,
            scopes=scopes or list(KeyScope),
        )
        return issued.secret

    async def limit(self, value: int, **where: str) -> None:
        """Limits what the customer may store."""
        await limit_tenant(
            self.database, self.customer.tenant.id, QuotaKind.FILE_STORAGE_BYTES, value, **where
        )


@pytest.fixture
async def house(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    directory = tmp_path / "files"
    settings = FilesSection(directory=directory, **SETTINGS)
    customer = await make_customer(database)
    async with stored_gateway(database_url, engine, files=settings) as url:
        yield House(url=url, directory=directory, customer=customer, database=database)
    await engine.stop()


def part(name: str, value: bytes, *, filename: str | None = None) -> bytes:
    named = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return f"--{BOUNDARY}\r\nContent-Disposition: {named}\r\n\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


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


async def test_a_file_expires_when_its_upload_said(house: House) -> None:
    async with house.openai() as client:
        made = await client.files.create(
            file=("in.jsonl", LINES),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3_600},
        )
    assert made.expires_at == made.created_at + 3_600


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


async def test_fields_may_come_in_any_order_and_strange_ones_are_let_by(house: House) -> None:
    body = form(
        part("colour", b"red"),
        part("file", LINES, filename="späť.jsonl"),
        part("expires_after[seconds]", b"7200"),
        part("purpose", b"batch"),
        part("expires_after[anchor]", b"created_at"),
    )
    async with house.http() as http:
        made = (await http.post("/v1/files", content=body, headers=FORM)).json()
        content = await http.get(f"/v1/files/{made['id']}/content")
    assert (made["filename"], made["bytes"], made["status_details"]) == ("späť.jsonl", len(LINES), None)
    assert made["expires_at"] == made["created_at"] + 7_200
    assert content.content == LINES


UNUSABLE_FORMS = [
    (form(part("file", LINES, filename="a")), "purpose"),
    (form(part("purpose", b"batch")), "file"),
    (form(part("purpose", b"fine-tune"), part("file", LINES, filename="a")), "purpose"),
    (form(part("purpose", b"batch"), part("data", LINES, filename="a")), "file"),
    (form(*[part("file", LINES, filename="a")] * 2, part("purpose", b"batch")), "file"),
    (form(part("purpose", b"batch"), part("file", b"\n" * 11, filename="a")), "file"),
    (form(part("purpose", b"batch"), part("file", b"\n" * 10 + b"a", filename="a")), "file"),
    (form(part("purpose", b"b" * 5_000), part("file", LINES, filename="a")), "purpose"),
    (part("purpose", b"batch") + part("file", LINES, filename="a"), None),
    (form(part("purpose", b"batch"), part("file", LINES, filename="a\0b")), None),
    (form(*[part("x", b"x")] * 17), None),
    (b"nothing of the kind", None),
]


async def test_a_form_that_cannot_be_used_is_a_400_and_leaves_nothing(
    house: House, database_url: str
) -> None:
    async with house.http() as http:
        for body, param in UNUSABLE_FORMS:
            response = await http.post("/v1/files", content=body, headers=FORM)
            assert response.status_code == 400, (body[:200], response.text)
            assert response.json()["error"]["param"] == param
            assert on_disk(house.directory) == [], body[:200]
    assert rows(database_url, "SELECT id FROM file") == []


UNUSABLE_EXPIRIES = [
    (b"last_active_at", b"7200", "expires_after[anchor]"),
    (b"created_at", b"3599", "expires_after[seconds]"),
    (b"created_at", b"2592001", "expires_after[seconds]"),
    (b"created_at", b"soon", "expires_after[seconds]"),
]


async def test_an_expiry_that_cannot_be_is_a_400_that_names_the_culprit(house: House) -> None:
    async with house.http() as http:
        for anchor, seconds, param in UNUSABLE_EXPIRIES:
            body = form(
                part("purpose", b"batch"),
                part("file", LINES, filename="a"),
                part("expires_after[anchor]", anchor),
                part("expires_after[seconds]", seconds),
            )
            response = await http.post("/v1/files", content=body, headers=FORM)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_body_that_is_no_form_is_a_400(house: House) -> None:
    async with house.http() as http:
        response = await http.post("/v1/files", json={"purpose": "batch"})
    assert response.status_code == 400
    assert "multipart/form-data" in response.json()["error"]["message"]


@pytest.mark.parametrize("is_length_told", [True, False])
async def test_a_file_over_the_cap_is_a_413_and_leaves_nothing(house: House, is_length_told: bool) -> None:
    too_much = b"x" * (MAX_FILE_BYTES + 100_000)
    body = form(part("purpose", b"batch"), part("file", too_much, filename="a"))

    async def pieces() -> AsyncIterator[bytes]:
        yield body[: 2 * PENDING_BYTES]
        await until_a_part_is_there(house)
        yield body[2 * PENDING_BYTES :]

    async with house.http() as http:
        response = await http.post("/v1/files", content=body if is_length_told else pieces(), headers=FORM)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert on_disk(house.directory) == []


async def test_a_form_that_goes_wrong_behind_its_file_is_a_400_and_leaves_nothing(house: House) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield part("file", BEGUN, filename="a")
        await until_a_part_is_there(house)
        yield form(part("purpose", b"fine-tune"))

    async with house.http() as http:
        response = await http.post("/v1/files", content=pieces(), headers=FORM)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "purpose")
    assert on_disk(house.directory) == []


async def test_a_client_that_leaves_midway_leaves_nothing(house: House, database_url: str) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield part("purpose", b"batch") + part("file", BEGUN, filename="a")
        await asyncio.sleep(60)

    async with house.http() as http:
        sending = asyncio.create_task(http.post("/v1/files", content=half(), headers=FORM))
        await until_a_part_is_there(house)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await until_nothing_is_there(house)
    assert rows(database_url, "SELECT id FROM file") == []
    assert await upload(house.url, house.customer.secret, LINES)  # and no seat is taken


async def test_a_client_that_falls_silent_is_timed_out_and_leaves_nothing(house: House) -> None:
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {house.customer.secret}\r\n"
        f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: {2 * PENDING_BYTES}\r\n\r\n"
    )
    port = int(house.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + part("file", BEGUN, filename="a"))
    await until_a_part_is_there(house)
    response = await reader.read()  # to the end of the connection
    writer.close()
    assert response.startswith(b"HTTP/1.1 504")
    assert on_disk(house.directory) == []


async def until_a_part_is_there(house: House) -> None:
    """Some of a file has gone to the disk."""
    async with asyncio.timeout(20):
        while not any(path.suffix == ".part" for path in on_disk(house.directory)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_nothing_is_there(house: House) -> None:
    """The disk is as before."""
    async with asyncio.timeout(20):
        while on_disk(house.directory):  # noqa: ASYNC110 - the disk has no event to wait for
            await asyncio.sleep(0.01)


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


async def test_the_same_upload_again_is_the_same_file(house: House, database_url: str) -> None:
    async with house.openai() as client:
        headers = {"Idempotency-Key": "one"}
        first, second, other = [
            await client.files.create(file=("in.jsonl", LINES), purpose="batch", extra_headers=headers)
            for headers in (headers, headers, {"Idempotency-Key": "two"})
        ]
        assert second == first
        assert other.id != first.id
        with pytest.raises(BadRequestError, match=f"another file: {first.id}"):
            await client.files.create(file=("in.jsonl", LINES * 2), purpose="batch", extra_headers=headers)
    assert len(on_disk(house.directory)) == len(rows(database_url, "SELECT id FROM file")) == 2


async def test_uploads_with_one_key_at_once_are_one_file(house: House) -> None:
    async def send() -> str:
        async with house.openai() as client:
            made = await client.files.create(
                file=("in.jsonl", LINES), purpose="batch", extra_headers={"Idempotency-Key": "one"}
            )
            return made.id

    assert len(set(await asyncio.gather(*(send() for _ in range(4))))) == 1
    assert len(on_disk(house.directory)) == 1


async def test_a_key_is_of_its_project_alone_and_of_its_day(house: House, database: Database) -> None:
    headers = {"Idempotency-Key": "one"}
    await create_project(database, "test", house.customer.tenant.id, "other")
    elsewhere = await house.key(project="other")
    fields = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", LINES)}, "headers": headers}
    async with house.http() as http, house.http(elsewhere) as other:
        first = (await http.post("/v1/files", **fields)).json()["id"]
        assert (await other.post("/v1/files", **fields)).json()["id"] != first
        await age(database, first, "25 hours")
        assert (await http.post("/v1/files", **fields)).json()["id"] != first
        assert (await http.get(f"/v1/files/{first}")).status_code == 200


async def test_a_replay_near_the_limit_is_no_refusal(house: House) -> None:
    await house.limit(len(LINES))
    async with house.openai() as client:
        first, second = [
            await client.files.create(
                file=("in.jsonl", LINES), purpose="batch", extra_headers={"Idempotency-Key": "one"}
            )
            for _ in range(2)
        ]
    assert second == first


async def test_what_is_over_the_limit_is_a_429_that_says_what_to_do(house: House) -> None:
    await house.limit(100)
    await upload(house.url, house.customer.secret, LINES)
    async with house.openai() as client:
        with pytest.raises(RateLimitError, match="Limit 100 bytes, Used 38") as refused:
            await client.files.create(file=("in.jsonl", b"x" * 63), purpose="batch")
        assert refused.value.code == "storage_limit_reached"
        assert refused.value.response.headers["x-should-retry"] == "false"
        await client.files.create(file=("in.jsonl", b"x" * 62), purpose="batch")
        kept = [file.id async for file in client.files.list()]
        await client.files.delete(kept[0])
        await client.files.create(file=("in.jsonl", b"x" * 62), purpose="batch")
    assert len(on_disk(house.directory)) == 2


async def test_a_limit_of_a_project_and_one_of_a_key_bind_as_well(house: House, database: Database) -> None:
    project = await create_project(database, "test", house.customer.tenant.id, "small")
    in_project = await house.key(project="small")
    await house.limit(50, scope=Scope.PROJECT, scope_id=project.id)
    await house.limit(10, scope=Scope.KEY, scope_id=house.customer.caller.key)
    fields = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"x" * 51)}}
    async with house.http() as http, house.http(in_project) as small:
        of_project, of_key = await small.post("/v1/files", **fields), await http.post("/v1/files", **fields)
    assert of_project.json()["error"]["message"].startswith(f"Storage limit reached for project {project.id}")
    assert of_key.json()["error"]["message"].startswith("Storage limit reached for API key")
    assert await upload(house.url, in_project, b"x" * 50)


async def test_the_limit_is_exact_whatever_is_uploaded_at_once(house: House, database: Database) -> None:
    await house.limit(1_000)
    await create_project(database, "test", house.customer.tenant.id, "other")
    secrets = [house.customer.secret, await house.key(project="other")]

    async def send(number: int) -> int:
        fields = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"x" * 300)}}
        async with house.http(secrets[number % 2]) as http:
            status = 503
            while status == 503:  # more at once than the gateway takes
                status = (await http.post("/v1/files", **fields)).status_code
            return status

    statuses = await asyncio.gather(*(send(number) for number in range(12)))
    assert sorted(statuses) == [200] * 3 + [429] * 9
    assert len(on_disk(house.directory)) == 3


async def test_one_tenants_uploads_leave_seats_to_others(house: House, database: Database) -> None:
    stranger = await make_customer(database, "stranger")
    everybody_sits = asyncio.Event()

    async def slow(body: bytes) -> AsyncIterator[bytes]:
        yield body[:20]
        await everybody_sits.wait()
        yield body[20:]

    async with house.http() as http:
        body = form(part("purpose", b"batch"), part("file", LINES, filename="a"))
        sending = [
            asyncio.create_task(http.post("/v1/files", content=slow(body), headers=FORM))
            for _ in range(SEATS_OF_ONE)
        ]
        await asyncio.sleep(0.3)
        refused = await http.post("/v1/files", content=body, headers=FORM)
        assert await upload(house.url, stranger.secret, LINES)
        everybody_sits.set()
        statuses = {(await sent).status_code for sent in sending}
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert statuses == {200}


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


async def test_a_gateway_without_a_place_for_files_says_so_at_the_first_upload(
    database: Database, database_url: str
) -> None:
    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    customer = await make_customer(database)
    async with stored_gateway(database_url, engine) as url, client_of(url, customer.secret) as http:
        refused = await http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a", LINES)})
        listed = await http.get("/v1/files")
    await engine.stop()
    assert refused.status_code == 503
    assert "[files] directory" in refused.json()["error"]["message"]
    assert listed.json()["data"] == []


async def test_a_long_upload_takes_little_memory(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    num_pieces, piece = 960, b"x" * 65_535 + b"\n"  # 60 MiB
    grown: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        yield part("purpose", b"batch") + part("file", b"", filename="a")[:-2]
        before = resident_bytes()
        for _ in range(num_pieces):
            yield piece
            grown.append(resident_bytes() - before)
        yield b"\r\n" + form()

    engine = WebSocketEngine(engine_description(), answer(5), secret=SHARED)
    await engine.start()
    customer = await make_customer(database)
    files = FilesSection(directory=tmp_path)
    async with (
        stored_gateway(database_url, engine, files=files) as url,
        client_of(url, customer.secret) as http,
    ):
        made = (await http.post("/v1/files", content=pieces(), headers=FORM, timeout=120)).json()
    await engine.stop()
    assert made["bytes"] == num_pieces * len(piece)
    assert max(grown) < 20 * 1024 * 1024


def resident_bytes() -> int:
    """Memory that this process, gateway and client, has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
