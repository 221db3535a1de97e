"""Reads the JSON body of a change, within a cap and a time."""

import asyncio
from typing import Final, TypeVar

from fastapi import Request

from gateway.api.services import services_of
from gateway.errors import DeadlineExceeded, RequestTooLarge
from gateway.requests.decode import decode

MAX_BYTES: Final = 64 * 1024

Body = TypeVar("Body")


async def read_body(request: Request, shape: type[Body]) -> Body:
    """The struct in the body. Raises InvalidRequest, RequestTooLarge and DeadlineExceeded."""
    try:
        async with asyncio.timeout(services_of(request.scope).settings.read_timeout_seconds):
            return decode(await _whole(request), shape)
    except TimeoutError as error:
        raise DeadlineExceeded("The request's body did not arrive in time.") from error


async def _whole(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise RequestTooLarge(f"The body is over the limit of {MAX_BYTES} bytes.")
    return bytes(body)
