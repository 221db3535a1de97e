"""The OpenAPI document: what FastAPI knows of its own routes, and those beside them that are raw ASGI."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from gateway.api.admin.described import COMPONENTS
from gateway.api.admin.described import SECURITY as OPERATOR_SECURITY
from gateway.api.admin.router import SHAPES as MANAGEMENT_SHAPES
from gateway.api.batches import SHAPES as BATCH_SHAPES
from gateway.api.file_description import SHAPES as FILE_SHAPES
from gateway.api.file_description import describe_files
from gateway.rendering import ErrorBody
from gateway.requests.bodies import ChatMessages, CompletionPrompt, GenerationOptions

_INFERENCE_ERRORS: Final = (400, 401, 403, 404, 413, 429, 500, 503, 504)
_ERRORS: Final = {
    400: "The body cannot be used; `param` names the culprit.",
    401: "The API key is unknown, revoked or expired.",
    403: "The API key lacks the scope that the request needs.",
    404: "What the request names does not exist, or not for this key.",
    413: "The body is over the size cap.",
    429: "A limit of the tenant is reached; nothing was counted.",
    500: "An error of the server's own.",
    503: "No engine can take the request now, or the store is away.",
    504: "The request's time ran out.",
}
_ERRORS_BELOW: Final = {"/v1/models": (401, 403, 404), "/v1/batches": (400, 401, 403, 404, 413, 503, 504)}


def openapi_document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document for an application with these routes."""
    document = get_openapi(
        title="Sluice",
        version=version("sluice-llm"),
        description="One language model, many tenants. Compatible with OpenAI's API.",
        routes=routes,
    )
    _, schemas = msgspec.json.schema_components(
        [
            GenerationOptions,
            ChatMessages,
            CompletionPrompt,
            ErrorBody,
            *FILE_SHAPES,
            *BATCH_SHAPES,
            *MANAGEMENT_SHAPES,
        ],
        ref_template=COMPONENTS,
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        OPERATOR_SECURITY: {"type": "http", "scheme": "bearer", "bearerFormat": "sk-op-…"},
    }
    document["paths"]["/v1/chat/completions"] = _operation("createChatCompletion", "Chat", "ChatMessages")
    document["paths"]["/v1/completions"] = _operation("createCompletion", "Completions", "CompletionPrompt")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # we say 400
            if (errors := _errors_below(path)) is not None:
                operation["security"] = [{"key": []}]
                operation["responses"].update({str(status): _error(status) for status in errors})
    describe_files(document)
    return document


def _errors_below(path: str) -> tuple[int, ...] | None:
    """What a tenant's routes may answer beside their answer; None: it is another's route."""
    found = (errors for prefix, errors in _ERRORS_BELOW.items() if path.startswith(prefix))
    return next(found, None)


def _operation(name: str, tag: str, prompt: str) -> dict[str, Any]:
    schema = {"allOf": [_reference("GenerationOptions"), _reference(prompt)]}
    return {
        "post": {
            "operationId": name,
            "tags": [tag],
            "summary": f"Create a {tag.lower().removesuffix('s')} answer, streamed or whole",
            "security": [{"key": []}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {
                "200": {
                    "description": "The answer; as events when `stream` is true.",
                    "content": {
                        "application/json": {"schema": {"type": "object"}},
                        "text/event-stream": {"schema": {"type": "string"}},
                    },
                },
                **{str(status): _error(status) for status in _INFERENCE_ERRORS},
            },
        }
    }


def _error(status: int) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference("ErrorBody")}}
    return {"description": _ERRORS[status], "content": content}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": COMPONENTS.format(name=name)}
