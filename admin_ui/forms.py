"""Reads posted forms into values that cannot be wrong. Knows no page and no store.

body bytes -> Form (texts by name) -> parse_* -> value | FieldError
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request

from gateway.quotas.limits import MAX_LIMIT

MAX_FORM_BYTES: Final = 64 * 1024
MAX_FORM_FIELDS: Final = 50
MAX_NAME_LENGTH: Final = 64

Form = Mapping[str, str]


class FieldError(Exception):
    """A field's text cannot be used; the message is one sentence for the person who typed it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


async def read_form(request: Request) -> Form:
    """The fields of a urlencoded body. Raises HTTPException 413 or 400; any other body has no fields."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, "The form is too large.")
    try:
        pairs = parse_qsl(
            body.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    return {name: value.replace("\0", "") for name, value in pairs}  # Postgres stores no NUL


def parse_name(form: Form, field: str, *, what: str) -> str:
    """A name of 1 to 64 visible characters."""
    name = " ".join(form.get(field, "").split())
    if not name:
        raise FieldError(field, f"Give the {what} a name.")
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise FieldError(field, f"Use at most {MAX_NAME_LENGTH} printable characters for the name.")
    return name


def parse_limit(form: Form, field: str) -> int | None:
    """A whole number; empty is None: unlimited. Spaces and commas between digits are fine."""
    text = re.sub(r"[\s,_']", "", form.get(field, ""))
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,13}", text) or int(text) > MAX_LIMIT:
        raise FieldError(field, f"Enter a whole number up to {MAX_LIMIT:,}, or nothing for no limit.")
    return int(text)


def parse_expiry(form: Form, field: str, *, now: datetime) -> datetime | None:
    """The end (UTC) of the named day, which must not be over; empty is None: never."""
    text = form.get(field, "").strip()
    if not text:
        return None
    try:
        last_day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        expires_at = last_day + timedelta(days=1)
    except (ValueError, OverflowError) as error:
        raise FieldError(field, "Enter the last day as year-month-day, or nothing for no end.") from error
    if expires_at <= now:
        raise FieldError(field, "Choose a day that is not over yet.")
    return expires_at
