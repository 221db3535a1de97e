"""What the OpenAPI document says of files: a form in, bytes out, and every error there may be."""

from typing import Any, Final

import msgspec

from gateway.api import file_content, file_upload
from gateway.api.admin.described import COMPONENTS
from gateway.api.file_form import ANCHOR, FILE, MAX_KEEP_SECONDS, MIN_KEEP_SECONDS, PURPOSE, SECONDS
from gateway.api.file_view import DeletedFile, FileList, FileObject
from gateway.idempotency import LONGEST_KEY
from gateway.rendering import ErrorBody

SHAPES: Final = (FileObject, FileList, DeletedFile)
_ERRORS: Final = {
    400: "The request cannot be used; `param` names the culprit where there is one.",
    401: "The API key is unknown, revoked or expired.",
    403: "The API key lacks the scope `files`.",
    404: "There is no such file in the key's project.",
    409: "A batch that has not ended reads the file.",
    413: "The file is over the size cap.",
    416: "The file has none of the bytes that are asked for.",
    429: "The limit of what may be stored is reached.",
    503: "The store or the place for files is away; try again.",
    504: "The body did not arrive in time.",
}
_FORM: Final = {
    "type": "object",
    "required": [FILE, PURPOSE],
    "properties": {
        FILE: {"type": "string", "format": "binary"},
        PURPOSE: {"type": "string", "enum": ["batch"]},
        ANCHOR: {"type": "string", "enum": ["created_at"]},
        SECONDS: {"type": "integer", "minimum": MIN_KEEP_SECONDS, "maximum": MAX_KEEP_SECONDS},
    },
}
_FILE_ID: Final = {"name": "file_id", "in": "path", "required": True, "schema": {"type": "string"}}
_KEY_HEADER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same upload again, within a day, is the same file.",
    "schema": {"type": "string", "maxLength": LONGEST_KEY},
}
_RANGE_HEADER: Final = {"name": "Range", "in": "header", "schema": {"type": "string"}}


def describe_files(document: dict[str, Any]) -> None:
    """Adds what the framework does not know of the routes of files."""
    paths = document["paths"]
    one, many = paths["/v1/files/{file_id}"], paths[file_upload.ROUTE]
    _complete(many["get"], FileList, 400, 404)
    _complete(one["get"], FileObject, 404)
    _complete(one["delete"], DeletedFile, 404, 409)
    many["post"] = {
        "operationId": "createFile",
        "tags": ["Files"],
        "summary": "Upload a file of requests, one a line",
        "parameters": [_KEY_HEADER],
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}},
        "responses": {},
    }
    _complete(many["post"], FileObject, 400, 413, 429, 504)
    paths[file_content.ROUTE] = {
        "get": {
            "operationId": "downloadFile",
            "tags": ["Files"],
            "summary": "Retrieve what is in a file, or a part of it",
            "parameters": [_FILE_ID, _RANGE_HEADER],
            "responses": {"206": _bytes("The part that the Range header asks for.")},
        }
    }
    _complete(paths[file_content.ROUTE]["get"], None, 404, 416)


def _complete(operation: dict[str, Any], answer: type[msgspec.Struct] | None, *errors: int) -> None:
    operation["security"] = [{"key": []}]
    operation["responses"] |= {
        "200": _bytes("The file.") if answer is None else _json("Done.", answer),
        **{str(status): _json(_ERRORS[status], ErrorBody) for status in sorted({401, 403, 503, *errors})},
    }


def _json(description: str, struct: type[msgspec.Struct]) -> dict[str, Any]:
    (reference,), _ = msgspec.json.schema_components([struct], ref_template=COMPONENTS)
    return {"description": description, "content": {"application/json": {"schema": reference}}}


def _bytes(description: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"description": description, "content": {"application/octet-stream": {"schema": schema}}}
