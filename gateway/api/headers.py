"""Header values of the published API. Pure."""

import math
from typing import Final

from gateway.errors import LimitStanding
from gateway.quotas.reservation import RateState

Headers = list[tuple[bytes, bytes]]

API_VERSION: Final = b"2020-10-01"


def limit_headers(kind: str, standing: RateState | LimitStanding) -> Headers:
    """How one limit stands, and which it is; `kind` is `requests` or `tokens`."""
    name = kind.encode()
    scope: Headers = [(b"x-ratelimit-scope-" + name, standing.name.encode())] if standing.name else []
    return [
        *scope,
        (b"x-ratelimit-limit-" + name, b"%d" % standing.limit),
        (b"x-ratelimit-remaining-" + name, b"%d" % standing.remaining),
        (b"x-ratelimit-reset-" + name, go_duration(standing.reset_seconds).encode()),
    ]


def rate_limit_headers(*, requests: RateState | None, tokens: RateState | None) -> Headers:
    """A caller's limits as they stand after reserving; nothing for what is unlimited."""
    states = {"requests": requests, "tokens": tokens}
    return [
        header for kind, state in states.items() if state is not None for header in limit_headers(kind, state)
    ]


def retry_headers(*, retry_after_seconds: float | None, should_retry: bool | None) -> Headers:
    """When, and whether, trying again can help. `Retry-After` is a whole number of at least 1."""
    headers: Headers = []
    if retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(retry_after_seconds))))
        headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(retry_after_seconds * 1000))))
    if should_retry is not None:
        headers.append((b"x-should-retry", b"true" if should_retry else b"false"))
    return headers


def go_duration(seconds: float) -> str:
    """A duration as the Go language prints it: `120ms`, `1s`, `6m0s`, `1h0m5s`."""
    if seconds < 1:
        return f"{math.ceil(max(0.0, seconds) * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
