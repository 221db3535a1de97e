"""The files of a project: which there are, what is known of one, and away with it.

Bytes come in by `file_upload.py` and go out by `file_content.py`.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response

from gateway.api.context import context_of
from gateway.api.file_view import DeletedFile, FileList, FileObject, file_object
from gateway.api.services import services_of
from gateway.files.file import StoredFile
from gateway.files.ids import FileId
from gateway.files.purpose import Purpose
from gateway.filing import ROWS_AT_ONCE
from gateway.keys.caller import Caller
from gateway.keys.scope import Scope

MOST: Final = 10_000
LONGEST_ID: Final = 200  # characters

router = APIRouter(prefix="/v1/files", tags=["Files"])

Limit = Annotated[int, Query(ge=1, le=MOST, description="How many at most.")]
Order = Annotated[Literal["asc", "desc"], Query(description="By age: `desc` has the newest first.")]
PurposeFilter = Annotated[str | None, Query(max_length=LONGEST_ID, description="Those for this only.")]
After = Annotated[str | None, Query(max_length=LONGEST_ID, description="Begin behind the file of this id.")]


@router.get("", summary="List files")
async def list_files(
    request: Request,
    purpose: PurposeFilter = None,
    limit: Limit = MOST,
    order: Order = "desc",
    after: After = None,
) -> Response:
    """The files of the key's project, by age."""
    caller = await _reader(request)
    shown: Sequence[StoredFile] = ()
    if purpose is None or purpose in set(Purpose):
        shown = await services_of(request.scope).filing.page(
            caller,
            purpose=None if purpose is None else Purpose(purpose),
            limit=limit + 1,
            after=None if after is None else FileId(after),
            newest_first=order == "desc",
        )
    return _answer(await _page(shown, limit))


@router.get("/{file_id}", summary="Retrieve a file")
async def retrieve_file(request: Request, file_id: str) -> Response:
    """What is known of one file."""
    caller = await _reader(request)
    return _answer(file_object(await services_of(request.scope).filing.find(caller, FileId(file_id))))


@router.delete("/{file_id}", summary="Delete a file")
async def delete_file(request: Request, file_id: str) -> Response:
    """Removes a file for good, unless a batch that has not ended reads it."""
    caller = await _reader(request)
    await services_of(request.scope).filing.delete(caller, FileId(file_id))
    return _answer(DeletedFile(id=file_id))


async def _reader(request: Request) -> Caller:
    """Who asks. Raises InvalidApiKey, PermissionDenied or StoreUnavailable."""
    caller = await services_of(request.scope).keys.authenticate(context_of(request.scope).authorization)
    caller.require(Scope.FILES)
    return caller


async def _page(shown: Sequence[StoredFile], limit: int) -> FileList:
    """A page of `limit` files, made of one more, if there is one more."""
    data: list[FileObject] = []
    for start in range(0, min(limit, len(shown)), ROWS_AT_ONCE):
        data += [file_object(stored) for stored in shown[start : min(limit, start + ROWS_AT_ONCE)]]
        await asyncio.sleep(0)  # others' turn
    return FileList(
        data=data,
        has_more=len(shown) > limit,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
    )


def _answer(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
