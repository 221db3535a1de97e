"""The Batches pages: what an operator sees of everybody's batches, and how one is ended."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from html import unescape

import pytest
from sqlalchemy import insert, select, update

from admin_ui.pages import batches as pages
from gateway import administration, batch_administration
from gateway.audit.tables import audit_event
from gateway.batches.faults import Fault, stored
from gateway.batches.ids import BatchId
from gateway.batches.status import BatchStatus, EndsAs
from gateway.batches.tables import batch, batch_item
from gateway.db import Database
from gateway.files.tables import file
from gateway.quotas.limits import QuotaKind
from gateway.tenants.errors import BadValue, NoSuchThing
from tests.builders.admin_site import Site, Visitor, admin_site
from tests.builders.batches import finish_lines, lease, make_batch
from tests.builders.store import Customer, limit_tenant, make_customer

pytestmark = pytest.mark.postgres


@pytest.fixture
async def site(database_url: str, database: Database) -> AsyncIterator[Site]:
    async with admin_site(database_url, database) as site:
        yield site


@pytest.fixture
async def operator(site: Site) -> Visitor:
    return await site.operator()


@pytest.fixture
async def acme(database: Database) -> Customer:
    return await make_customer(database, "acme")


async def change(database: Database, batch_id: BatchId, **values: object) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(update(batch).where(batch.c.id == batch_id).values(**values))


async def audited(database: Database) -> list[tuple[object, ...]]:
    async with database.system_transaction() as connection:
        rows = await connection.execute(
            select(audit_event.c.actor, audit_event.c.subject, audit_event.c.before, audit_event.c.after)
            .where(audit_event.c.action == "batch.cancelled")
            .order_by(audit_event.c.id)
        )
        return [tuple(row) for row in rows]


def listed(page: str) -> list[str]:
    """The batches of a list, in its order."""
    return re.findall(r'<a class="name" href="/batches/(batch_\w+)">', page)


async def text_of(operator: Visitor, path: str) -> str:
    """What a page says, without its markup."""
    answer = await operator.get(path)
    assert answer.status_code == 200, answer.text
    words = re.sub(r"<[^>]+>", " ", answer.text)
    return " ".join(unescape(words).split())


# --- the list ----------------------------------------------------------------------------------------------


async def test_no_batches_yet_says_how_to_submit_the_first(operator: Visitor) -> None:
    assert "sluice batch submit" in await text_of(operator, "/batches")


async def test_batches_of_all_tenants_are_listed_newest_first(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    other = await make_customer(database, "other")
    made = [await make_batch(database, customer) for customer in (acme, other, acme)]
    page = (await operator.get("/batches")).text
    assert listed(page) == made[::-1]
    assert ("acme" in page, "other" in page) == (True, True)


async def test_a_row_tells_how_far_a_batch_is(database: Database, operator: Visitor, acme: Customer) -> None:
    made = await make_batch(database, acme, num_items=4)
    await finish_lines(database, acme, made, [1, 2])
    await finish_lines(database, acme, made, [3], status=400)
    await change(database, made, items_per_second=2.5)
    page = (await operator.get("/batches")).text
    assert re.search(r'role="progressbar"[^>]* aria-valuemax="4" aria-valuenow="3"', page)
    assert 'aria-valuetext="3 of 4 done, 1 of them failed"' in page
    text = await text_of(operator, "/batches")
    assert "In progress 3 of 4 1 failed 2.5/s" in text


async def test_a_page_holds_so_many_and_leads_to_the_older_ones(
    database: Database, operator: Visitor, acme: Customer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    made = [await make_batch(database, acme, num_items=0) for _ in range(5)]
    at = datetime.now(UTC)
    for batch_id in made:
        await change(database, batch_id, created_at=at)  # all at once: ids decide
    path, seen = "/batches?state=in_progress", []
    while True:
        page = (await operator.get(path)).text
        seen.append(listed(page))
        older = re.search(r'href="([^"]+)">Older<', page)
        if older is None:
            break
        path = unescape(older[1])
    assert [len(each) for each in seen] == [2, 2, 1]
    assert [each for shown in seen for each in shown] == sorted(made, reverse=True)
    assert 'href="/batches?state=in_progress">Newest<' in page


SHOWN_OF_STATE: dict[str, set[str]] = {
    "": {"in_progress", "completed", "failed"},
    "open": {"in_progress"},
    "failed": {"failed"},
    "expired": set(),
    "nonsense": {"in_progress", "completed", "failed"},
}


async def test_batches_in_a_state_can_be_shown_alone(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    statuses = (BatchStatus.IN_PROGRESS, BatchStatus.COMPLETED, BatchStatus.FAILED)
    made = {await make_batch(database, acme, num_items=0, status=each): each.value for each in statuses}
    for state, shown in SHOWN_OF_STATE.items():
        page = (await operator.get(f"/batches?state={state}")).text
        assert {made[BatchId(each)] for each in listed(page)} == shown, state


async def test_batches_of_one_tenant_can_be_shown_alone(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    other = await make_customer(database, "other")
    mine, _ = await make_batch(database, acme), await make_batch(database, other)
    assert listed((await operator.get(f"/batches?tenant={acme.tenant.id}")).text) == [mine]
    assert (
        f'href="/batches?tenant={acme.tenant.id}"' in (await operator.get(f"/tenants/{acme.tenant.id}")).text
    )


# --- one batch ---------------------------------------------------------------------------------------------


async def test_a_batch_shows_its_counts_tokens_times_and_files(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme, num_items=4)
    await change(
        database,
        made,
        prompt_tokens=1_234,
        completion_tokens=5_678,
        metadata={"run": "7"},
        status="finalizing",
    )
    await add_file(database, acme, "file-input", num_bytes=1_450)
    text = await text_of(operator, f"/batches/{made}")
    for part in ("1,234", "5,678", "run 7", "Input file-input in.jsonl 1.4\u2009kB".replace("\u2009", " ")):
        assert part in text.replace("\u2009", " ")
    assert "of acme , project default, key first sk-" in text


async def test_what_is_wrong_with_a_file_is_shown_as_text(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme, num_items=0, status=BatchStatus.FAILED)
    fault = Fault(code="invalid_json", line=7, message="<script>alert(1)</script>")
    await change(database, made, errors=stored([fault]))
    page = (await operator.get(f"/batches/{made}")).text
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "7 invalid_json" in await text_of(operator, f"/batches/{made}")


async def test_a_batch_that_was_cut_short_tells_what_was_never_run(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme, num_items=4)
    await finish_lines(database, acme, made, [1])
    await change(database, made, status="expired", expired_at=datetime.now(UTC))
    text = await text_of(operator, f"/batches/{made}")
    assert ("1 of 4" in text, "Not run 3" in text, "Running" in text) == (True, True, False)


async def test_a_batch_that_waits_says_what_for(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme, num_items=2)
    path = f"/batches/{made}"
    assert "waits for room" in await text_of(operator, path)

    await lease(database, made, [1], epoch=1)
    assert "1 request runs now." in await text_of(operator, path)

    await change(database, made, ends_as=EndsAs.EXPIRED.value)
    ending = "Its window has closed; 1 request runs and will be ended."
    assert ending in await text_of(operator, path)

    await change(database, made, ends_as=None, status=BatchStatus.FINALIZING.value)
    assert "files are being written" in await text_of(operator, path)


async def test_requests_that_are_tried_again_say_when(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme, num_items=2)
    async with database.system_transaction() as connection:
        later = datetime(2030, 3, 3, 14, 5, tzinfo=UTC)
        await connection.execute(
            update(batch_item).where(batch_item.c.batch_id == made).values(not_before=later)
        )
    assert "tried again from 3 Mar 2030, 14:05 UTC on" in await text_of(operator, f"/batches/{made}")


async def test_a_disabled_tenant_s_batch_says_so(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme)
    await administration.set_tenant_enabled(database, "test", "acme", enabled=False)
    assert "The tenant is disabled" in await text_of(operator, f"/batches/{made}")


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (QuotaKind.TOKENS_PER_DAY, 0, True),
        (QuotaKind.TOKENS_PER_DAY, 100, False),
        (QuotaKind.CONCURRENT_REQUESTS, 0, False),  # for people: batches leave it alone
    ],
)
async def test_a_used_up_budget_is_named(
    database: Database, operator: Visitor, acme: Customer, kind: QuotaKind, value: int, says: bool
) -> None:
    made = await make_batch(database, acme)
    await limit_tenant(database, acme.tenant.id, kind, value)
    text = await text_of(operator, f"/batches/{made}")
    assert ("tokens_per_day of its tenant, 0, is used up" in text) is says
    assert ("is used up" in text) is says


async def test_a_batch_that_is_not_there_is_not_found(operator: Visitor) -> None:
    for path in ("", "/cancel", "/live"):
        assert (await operator.get(f"/batches/batch_none{path}")).status_code == 404, path


async def test_a_page_after_a_batch_that_is_not_there_is_not_found(operator: Visitor) -> None:
    assert (await operator.get("/batches?after=batch_none")).status_code == 404


# --- ending one --------------------------------------------------------------------------------------------


async def test_a_batch_is_cancelled_after_asking_and_the_operator_is_the_actor(
    database: Database, operator: Visitor, acme: Customer
) -> None:
    made = await make_batch(database, acme)
    answer = await operator.submit(f"/batches/{made}/cancel")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/batches/{made}")
    text = await text_of(operator, f"/batches/{made}")
    assert "The batch is being cancelled." in text
    assert "Cancelling" in text
    tenant = acme.tenant.id
    assert await audited(database) == [
        (
            "ada",
            made,
            {"tenant": tenant, "status": "in_progress"},
            {"tenant": tenant, "status": "cancelling"},
        )
    ]
    found = (await batch_administration.get_batch(database, made)).owned.batch
    assert (found.status, found.ends_as) == (BatchStatus.CANCELLING, EndsAs.CANCELLED)
    assert found.cancelling_at is not None


async def test_cancelling_twice_is_one_change(database: Database, acme: Customer) -> None:
    made = await make_batch(database, acme)
    for _ in range(2):
        await batch_administration.cancel_batch(database, "ada", made)
    assert len(await audited(database)) == 1


async def test_what_has_ended_is_not_cancelled(database: Database, operator: Visitor, acme: Customer) -> None:
    made = await make_batch(database, acme, status=BatchStatus.COMPLETED)
    page = await text_of(operator, f"/batches/{made}")
    assert "What was done can be fetched" not in page
    answer = await operator.submit(f"/batches/{made}/cancel")
    assert (answer.status_code, "it is completed" in answer.text) == (409, True)
    with pytest.raises(BadValue):
        await batch_administration.cancel_batch(database, "ada", made)
    with pytest.raises(NoSuchThing):
        await batch_administration.cancel_batch(database, "ada", BatchId("batch_none"))
    assert await audited(database) == []


async def add_file(database: Database, customer: Customer, file_id: str, *, num_bytes: int) -> None:
    async with database.system_transaction() as connection:
        await connection.execute(
            insert(file).values(
                id=file_id,
                tenant_id=customer.tenant.id,
                project_id=customer.caller.project,
                purpose="batch",
                filename="in.jsonl",
                num_bytes=num_bytes,
                sha256=b"",
                blob="blob-input",
            )
        )
