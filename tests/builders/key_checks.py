"""Presents keys to a KeyService as clients do."""

import asyncio
from collections.abc import Callable

import psycopg

from gateway.errors import InvalidApiKey
from gateway.keys.caller import Caller
from gateway.keys.service import KeyService


def age_keys(url: str) -> None:
    """As if no key had changed for an hour: polls look back a while, and would see one that was just made."""
    with psycopg.connect(url) as connection:
        for table in ("api_key", "project", "tenant"):
            connection.execute(f"UPDATE {table} SET updated_at = now() - interval '1 hour'")


def bearer(secret: str) -> str:
    return f"Bearer {secret}"


async def is_let_in(keys: KeyService, secret: str) -> bool:
    try:
        await keys.authenticate(bearer(secret))
    except InvalidApiKey:
        return False
    return True


async def seconds_until(keys: KeyService, secret: str, *, let_in: bool) -> float:
    """How long it takes from now until a key is let in, or no more."""
    begun = asyncio.get_running_loop().time()
    async with asyncio.timeout(10):
        while await is_let_in(keys, secret) != let_in:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)
    return asyncio.get_running_loop().time() - begun


async def until_caller(keys: KeyService, secret: str, is_so: Callable[[Caller], bool]) -> None:
    """Waits until a key says what it should: for two seconds, as long as a change may take."""
    async with asyncio.timeout(2):
        while not is_so(await keys.authenticate(bearer(secret))):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.02)
