"""Looks at the store's rows from outside, beside the code under test."""

import asyncio
from typing import LiteralString

import psycopg


def rows(url: str, query: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return list(connection.execute(query).fetchall())


def value(url: str, query: LiteralString) -> object:
    ((only,),) = rows(url, query)
    return only


async def until_rows(url: str, query: LiteralString, expected: list[tuple[object, ...]]) -> None:
    """Returns once the store says so."""
    found: list[tuple[object, ...]] = []
    for _ in range(100):
        if (found := rows(url, query)) == expected:
            return
        await asyncio.sleep(0.05)
    assert found == expected


async def until_value(
    url: str, query: LiteralString, expected: object, *, timeout_seconds: float = 15
) -> None:
    """Returns once the store says so."""
    async with asyncio.timeout(timeout_seconds):
        while value(url, query) != expected:  # noqa: ASYNC110 - the store has no event to wait for
            await asyncio.sleep(0.02)
