"""The admin pages over a real database, without a network, and a visitor who fills in their forms."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx
from fastapi import FastAPI

from admin_ui.app import create_app
from admin_ui.settings import AdminSettings
from gateway.db import Database
from gateway.operators.service import create_invite

ORIGIN = "http://admin.test"
PASSWORD = "a good long password"
KEY_PEPPER = "ab" * 16
ENGINE_SECRET = "cd" * 16
NO_ENGINE = "ws://127.0.0.1:9"


def admin_settings(database_url: str, **sections: Any) -> AdminSettings:
    """Settings over a database; no engine answers unless a section says so."""
    values: dict[str, Any] = {
        "gateway": {"engines": [NO_ENGINE]},
        "secrets": {"key_pepper": KEY_PEPPER, "engine_shared": ENGINE_SECRET},
    }
    return AdminSettings(database_url=database_url, **values | sections)


class Visitor:
    """A browser of sorts: keeps cookies, follows nothing by itself, sends forms as a browser does."""

    def __init__(self, app: FastAPI, origin: str = ORIGIN) -> None:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=origin)
        self._origin = origin

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    async def submit(self, page: str, *, action: str | None = None, **fields: str) -> httpx.Response:
        """Opens a page, fills in its form and sends it to `action`, or to the page itself."""
        hidden = hidden_fields((await self.get(page)).text)
        return await self.post(action or page, {**hidden, **fields})

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        return await self.http.post(path, data=fields, headers={"Origin": self._origin, **headers})


class Site:
    """A running admin UI."""

    def __init__(self, app: FastAPI, database: Database) -> None:
        self.app = app
        self.database = database

    def visitor(self, origin: str = ORIGIN) -> Visitor:
        """Somebody who is not signed in."""
        return Visitor(self.app, origin)

    async def operator(self, name: str = "ada") -> Visitor:
        """Somebody who has signed in through an invite."""
        visitor, token = self.visitor(), await create_invite(self.database)
        answer = await visitor.submit(f"/setup/{token}", name=name, password=PASSWORD)
        assert answer.status_code == 303, answer.text
        await visitor.get("/")  # takes the welcome message away
        return visitor


@asynccontextmanager
async def admin_site(database_url: str, database: Database, **sections: Any) -> AsyncIterator[Site]:
    """The application inside its lifespan."""
    app = create_app(admin_settings(database_url, **sections))
    async with app.router.lifespan_context(app):
        yield Site(app, database)


def hidden_fields(html: str) -> dict[str, str]:
    """The hidden inputs of a page."""
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', html)
    return {name: unescape(value) for name, value in found}
