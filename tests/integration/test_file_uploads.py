"""Uploads over real HTTP: forms of any kind, what is over a cap or a limit, and what breaks off."""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import BadRequestError, RateLimitError

from gateway.db import Database
from gateway.files.incoming import PENDING_BYTES
from gateway.project_administration import create_project
from gateway.quotas.limits import Scope
from gateway.settings import FilesSection
from tests.builders.engine_messages import engine_description
from tests.builders.file_house import LINES, MAX_FILE_BYTES, House, file_house
from tests.builders.files import age, on_disk, upload
from tests.builders.store import make_customer
from tests.builders.store_rows import rows
from tests.builders.stored_gateway import SHARED, client_of, stored_gateway
from tests.fakes.websocket_engine import WebSocketEngine, answer

pytestmark = pytest.mark.postgres

BEGUN = b"x" * PENDING_BYTES  # as much as goes to the disk before the rest is there
SEATS_OF_ONE = 4  # half of all there are
BOUNDARY = "sluice-test"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@pytest.fixture
async def house(database: Database, database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    async with file_house(database, database_url, tmp_path / "files") as house:
        yield house


def part(name: str, value: bytes, *, filename: str | None = None) -> bytes:
    named = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return f"--{BOUNDARY}\r\nContent-Disposition: {named}\r\n\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


async def test_a_file_expires_when_its_upload_said(house: House) -> None:
    async with house.openai() as client:
        made = await client.files.create(
            file=("in.jsonl", LINES),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3_600},
        )
    assert made.expires_at == made.created_at + 3_600


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
    reader, writer = await begun_upload(house)
    writer.write(part("file", BEGUN, filename="a"))
    await until_a_part_is_there(house)
    response = await reader.read()  # to the end of the connection
    writer.close()
    assert response.startswith(b"HTTP/1.1 504")
    assert on_disk(house.directory) == []


async def test_what_there_is_no_room_for_is_refused_by_its_length_before_any_of_it_comes(
    house: House,
) -> None:
    await house.limit(PENDING_BYTES)
    await upload(house.url, house.customer.secret, LINES)
    reader, writer = await begun_upload(house)
    answered = await reader.readuntil(b"\r\n")
    writer.close()
    assert answered.startswith(b"HTTP/1.1 429")


async def begun_upload(house: House) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The head of an upload is sent, which says how long it will be; nothing of its body."""
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {house.customer.secret}\r\n"
        f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: {2 * PENDING_BYTES}\r\n\r\n"
    )
    port = int(house.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode())
    return reader, writer


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
