"""The admin pages in a real browser: an operator's first hour, live figures, and pages that fit."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from sqlalchemy import update

from engine.protocol import ClassCounts, SloRow
from gateway.batches.ids import BatchId
from gateway.batches.tables import batch
from gateway.db import Database
from gateway.operators.service import create_invite
from tests.builders.admin_process import AdminProcess
from tests.builders.admin_site import ENGINE_SECRET, PASSWORD
from tests.builders.batches import finish_lines, make_batch
from tests.builders.browser import CHROMEDRIVER, CHROMIUM, Browser, chromium
from tests.builders.store import make_customer
from tests.fakes.reporting_engine import ReportingEngine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgres,
    pytest.mark.skipif(
        not (CHROMIUM.exists() and CHROMEDRIVER.exists()), reason="Chromium and its driver are not installed"
    ),
]

SECRET = re.compile(r"sk-[a-z]+-\w{12}-\w{49}")


@pytest.fixture
def engine() -> Iterator[ReportingEngine]:
    with ReportingEngine(secret=ENGINE_SECRET) as engine:
        yield engine


@pytest.fixture
def process(database_url: str, engine: ReportingEngine) -> Iterator[AdminProcess]:
    with AdminProcess(database_url, engines=(engine.url,)) as process:
        yield process


@pytest.fixture
def browser(process: AdminProcess, database_url: str, tmp_path: Path) -> Iterator[Browser]:
    """Signed in through the one-time link."""
    with chromium(process.url, tmp_path / "profile") as browser:
        browser.resize(1440)
        browser.open(f"/setup/{asyncio.run(invite(database_url))}")
        browser.type("name", "ada")
        browser.type("password", PASSWORD)
        browser.press("Create account and sign in")
        browser.until_it_shows("Welcome.")
        yield browser


async def invite(database_url: str) -> str:
    async with connected(database_url) as database:
        return await create_invite(database)


async def half_done_batch(database_url: str) -> BatchId:
    async with connected(database_url) as database:
        customer = await make_customer(database, "acme")
        made = await make_batch(database, customer, num_items=4)
        await finish_lines(database, customer, made, [1])
        await finish_lines(database, customer, made, [2], status=400)
    return made


async def change_batch(database_url: str, batch_id: BatchId, **values: object) -> None:
    async with connected(database_url) as database, database.system_transaction() as connection:
        await connection.execute(update(batch).where(batch.c.id == batch_id).values(**values))


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[Database]:
    database = Database.connect(database_url, application_name="test")
    try:
        yield database
    finally:
        await database.close()


def create_tenant(browser: Browser, name: str) -> None:
    browser.open("/tenants/new")
    browser.type("name", name)
    browser.press("Create tenant")
    browser.until_it_shows(f"Tenant {name} is created.")


def issue_key(browser: Browser, name: str) -> str:
    """From a tenant's page; returns the secret that is shown."""
    browser.press("Issue key")
    browser.type("name", name)
    browser.press("Issue key")
    browser.until_it_shows("Copy the secret now.")
    return browser.find("#secret").text


def test_a_key_is_issued_seen_once_and_revoked(browser: Browser) -> None:
    create_tenant(browser, "acme")
    secret = issue_key(browser, "website")
    assert SECRET.fullmatch(secret)
    browser.driver.refresh()
    assert secret not in browser.driver.page_source
    browser.press("Revoke")
    browser.press("Revoke key")
    browser.until_it_shows("The key is revoked.")
    assert "Revoked" in browser.text()
    assert browser.complaints() == []


def test_the_overview_follows_the_engine_without_a_reload(browser: Browser, engine: ReportingEngine) -> None:
    browser.driver.execute_script("window.sameDocument = true")
    engine.say(
        interactive=ClassCounts(running=4_321, waiting=17),
        slo=(SloRow("ttft_p95_ms", 1500.0, 1700.0, 1600.0, 3),),
    )
    browser.until_it_shows("4,321")
    browser.until_it_shows("Breach")
    browser.until("document.querySelector('[data-live-state]').dataset.liveState === 'live'")
    assert browser.driver.execute_script("return window.sameDocument")
    assert browser.complaints() == []


def test_a_batch_s_bar_moves_by_itself_and_the_batch_is_cancelled(
    browser: Browser, database_url: str
) -> None:
    batch_id = asyncio.run(half_done_batch(database_url))
    browser.open("/batches")
    bar = "document.querySelector('[role=progressbar]')"
    browser.until(f"{bar}.getAttribute('aria-valuenow') === '2'")
    browser.driver.execute_script("window.sameDocument = true")
    asyncio.run(change_batch(database_url, batch_id, num_completed=2))
    browser.until(f"{bar}.getAttribute('aria-valuenow') === '3'")
    assert browser.driver.execute_script(f"return {bar}.querySelector('.blocks-used').getBBox().width") > 0
    assert browser.driver.execute_script("return window.sameDocument")
    browser.press(batch_id)
    browser.until_it_shows("3 of 4")
    browser.press("Cancel")
    browser.press("Cancel batch")
    browser.until_it_shows("The batch is being cancelled.")
    asyncio.run(change_batch(database_url, batch_id, status="cancelled"))
    browser.until_it_shows("Cancelled")
    assert browser.complaints() == []


def test_many_tabs_share_one_stream(browser: Browser, engine: ReportingEngine) -> None:
    for _ in range(8):  # a browser opens six connections to a host: without sharing, the seventh hangs
        browser.driver.switch_to.new_window("tab")
        browser.open("/")
    engine.say(interactive=ClassCounts(running=6_789, waiting=0))
    browser.until_it_shows("6,789")


def test_signing_out_elsewhere_ends_what_a_page_may_do(browser: Browser) -> None:
    browser.open("/tenants")
    browser.press("Sign out")
    browser.until_it_shows("You are signed out.")
    browser.open("/keys")
    assert browser.driver.current_url.endswith("/login?next=%2Fkeys")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [375, 768, 1440])
def test_no_page_scrolls_sideways(browser: Browser, database_url: str, width: int, dark: bool) -> None:
    create_tenant(browser, "a-name-without-any-space-that-is-as-long-as-names-may-be-64-char")
    tenant_path = browser.driver.current_url.split("/", 3)[3]
    issue_key(browser, "another-name-without-any-space-that-is-as-long-as-names-may-be-6")
    browser.resize(width, dark=dark)
    wide = {"the page with a secret"} if browser.scrolls_sideways() else set()
    made = asyncio.run(half_done_batch(database_url))
    batches = ("/batches", f"/batches/{made}", f"/batches/{made}/cancel")
    others = ("/", "/tenants", "/tenants/new", f"/{tenant_path}", "/keys", "/keys/new", "/nowhere")
    for path in (*others, *batches):
        browser.open(path)
        if browser.scrolls_sideways():
            wide.add(path)
    assert wide == set()


def test_the_page_works_from_the_keyboard(browser: Browser) -> None:
    browser.open("/tenants/new")
    assert browser.driver.switch_to.active_element.get_attribute("id") == "name"
    labelled = {label.get_attribute("for") for label in browser.driver.find_elements(By.TAG_NAME, "label")}
    inputs = browser.driver.find_elements(By.CSS_SELECTOR, "main input:not([type=hidden])")
    assert {field.get_attribute("id") for field in inputs} == labelled
