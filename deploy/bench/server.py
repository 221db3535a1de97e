"""The server under load, over HTTP: its models, and one streamed completion at a time. Effects only."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import msgspec

from deploy.bench.stream import AnswerReader, reason_of
from deploy.bench.workload import Tenant
from deploy.failure import Failure

CONNECT_SECONDS: Final = 10.0
# Shorter than servers keep idle connections (uvicorn: 5 s), so that none is used just as it is closed.
KEEP_ALIVE_SECONDS: Final = 4.0
CONNECTION_REFUSED: Final = "connection_refused"
CONNECTION_LOST: Final = "connection_lost"
TIMEOUT: Final = "timeout"
_PAGE_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of one request. Times are those of `time.perf_counter`."""

    started_at: float
    ended_at: float
    token_times: Sequence[float]
    text: str
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int | None
    error: str | None
    is_cancelled: bool


class Server:
    """An OpenAI-compatible server. One session of connections that are kept; use `connected`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._completions_url = f"{url}/v1/completions"

    async def models(self, tenant: Tenant) -> list[str] | None:
        """The names of its models; None where it has no such list. Raises Failure with one line."""
        try:
            async with self._session.get(
                f"{self._url}/v1/models", headers=_headers(tenant), timeout=_PAGE_TIMEOUT
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Failure(
                f"nothing answers at {self._url}: start a server there, or name one with --url"
            ) from error
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise Failure(
                f"{self._url} refuses the key of {tenant.name}: give one with --key KEY or --tenant NAME=KEY"
            )
        if response.status == HTTPStatus.NOT_FOUND:
            return None
        if response.status != HTTPStatus.OK:
            raise Failure(
                f"{self._url}/v1/models answers with status {response.status}; is it the API's URL?"
            )
        return _model_names(body, self._url)

    async def page(self, url: str) -> str:
        """The text of a page of figures; raises Failure."""
        try:
            async with self._session.get(url, timeout=_PAGE_TIMEOUT) as response:
                if response.status == HTTPStatus.OK:
                    return await response.text()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Failure(f"no figures at {url}: name the server's own page with --metrics-url") from error
        raise Failure(f"no figures at {url}: it answers with status {response.status}")

    async def complete(
        self,
        body: bytes,
        tenant: Tenant,
        *,
        leaves_after_tokens: int | None,
        timeout_seconds: float,
    ) -> Answer:
        """Streams one completion until it ends or its client leaves; what a server does raises nothing."""
        reader = AnswerReader()
        error: str | None = None
        is_cancelled = False
        started_at = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_seconds):
                async with self._session.post(
                    self._completions_url, data=body, headers=_headers(tenant)
                ) as response:
                    if response.status != HTTPStatus.OK:
                        error = reason_of(await response.read(), status=response.status)
                    else:
                        is_cancelled = await _read(response, reader, leaves_after_tokens)
                        error = None if is_cancelled else reader.error
        except TimeoutError:
            error = TIMEOUT
        except aiohttp.ClientConnectorError:
            error = CONNECTION_REFUSED
        except (aiohttp.ClientError, OSError):
            error = CONNECTION_LOST
        return _answer(reader, started_at, error=error, is_cancelled=is_cancelled)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Server]:
    """A server at `url` (with or without /v1), as many connections as there are requests."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Server(session, url.rstrip("/").removesuffix("/v1"))


async def check(server: Server, tenants: Sequence[Tenant], model: str | None) -> str:
    """The model to ask for, once every tenant's key is known to be good; raises Failure."""
    for tenant in tenants:
        names = await server.models(tenant)
    if names is None and model is not None:
        return model
    if names is None:
        raise Failure("the server has no list of models: name the one to ask for with --model")
    if model is None and not names:
        raise Failure("the server has no model yet; wait until one is loaded, or name one with --model")
    if model is not None and model not in names:
        raise Failure(f"the server has no model {model}; it has: {', '.join(names) or 'none'}")
    return model or names[0]


def request_body(
    prompt: list[int] | str,
    *,
    model: str,
    num_output_tokens: int,
    is_exact: bool,
    is_offline: bool,
) -> bytes:
    """A greedy, streamed completion. `is_exact` forces its length, by extensions that most servers know."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": num_output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if is_exact:
        body |= {"min_tokens": num_output_tokens, "ignore_eos": True}
    if is_offline:
        body["service_tier"] = "flex"
    return msgspec.json.encode(body)


async def _read(
    response: aiohttp.ClientResponse, reader: AnswerReader, leaves_after_tokens: int | None
) -> bool:
    """Whether the client left before the end."""
    async for data in response.content.iter_any():
        reader.feed(data, time.perf_counter())
        if leaves_after_tokens is not None and len(reader.token_times) >= leaves_after_tokens:
            response.close()
            return True
    return False


def _answer(reader: AnswerReader, started_at: float, *, error: str | None, is_cancelled: bool) -> Answer:
    """Without the server's word on usage, events with text count as tokens."""
    usage = reader.usage
    details = usage and usage.prompt_tokens_details
    return Answer(
        started_at=started_at,
        ended_at=time.perf_counter(),
        token_times=reader.token_times,
        text=reader.text,
        num_prompt_tokens=usage.prompt_tokens if usage else 0,
        num_completion_tokens=usage.completion_tokens if usage else len(reader.token_times),
        num_cached_tokens=details.cached_tokens if details else None,
        error=error,
        is_cancelled=is_cancelled,
    )


def _headers(tenant: Tenant) -> Mapping[str, str]:
    headers = {"Content-Type": "application/json"}
    return headers if tenant.key is None else headers | {"Authorization": f"Bearer {tenant.key}"}


def _model_names(body: bytes, url: str) -> list[str]:
    try:
        return [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Failure(
            f"{url}/v1/models answers with something else than models; is it the API's URL?"
        ) from error
