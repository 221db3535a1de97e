"""Clients of servers on this machine.

They read no authorities' certificates, which nothing here is encrypted by: that takes 70 ms a client.
"""

from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient


def http_client(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(verify=False, **options)


def openai_client(url: str, secret: str, **options: Any) -> AsyncOpenAI:
    """The official client, of the server at `url`."""
    return AsyncOpenAI(
        base_url=f"{url}/v1", api_key=secret, http_client=DefaultAsyncHttpxClient(verify=False), **options
    )
