"""Cuts lists into pages by key: `after` is the id of the last thing seen."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from fastapi import Query

Item = TypeVar("Item")

LONGEST_ID: Final = 200  # characters

Limit = Annotated[int, Query(ge=1, le=100, description="How many at most.")]
After = Annotated[str | None, Query(max_length=LONGEST_ID, description="Begin behind the thing of this id.")]
AfterNumber = Annotated[
    int | None, Query(ge=1, le=2**63 - 1, description="Begin behind the thing of this id.")
]
Named = Annotated[str | None, Query(max_length=LONGEST_ID)]


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """One page of a list; the next one begins `after` the last id of this one."""

    data: list[Item]
    has_more: bool
    object: str = "list"


def page_of(shown: Sequence[Any], *, limit: int) -> Page[Any]:
    """A page of `limit` things, made of one more, if there is one more."""
    return Page(data=list(shown[:limit]), has_more=len(shown) > limit)
