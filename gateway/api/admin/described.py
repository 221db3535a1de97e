"""What the OpenAPI document says of a management route: its body, its answer, and every error it may give."""

from typing import Any, Final

import msgspec
from fastapi.responses import Response

from gateway.rendering import ErrorBody

SECURITY: Final = "operatorKey"
COMPONENTS: Final = "#/components/schemas/{name}"
_ERRORS: Final = {
    400: "The body or a parameter cannot be used; `param` names the culprit where there is one.",
    401: "No operator key, or one that is unknown, revoked or expired.",
    403: "The operator key lacks the scope that is needed; the message names it.",
    404: "What the request names does not exist.",
    409: "The name is taken.",
    413: "The body is over the size cap.",
    503: "The store is away; try again.",
    504: "The body did not arrive in time.",
}
_ALWAYS: Final = (400, 401, 403, 503)
_WITH_BODY: Final = (413, 504)


def described(
    answer: Any, *, body: type[msgspec.Struct] | None = None, status: int = 200, errors: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Arguments of a route's decorator; `answer` and `body` are structs."""
    statuses = sorted({*_ALWAYS, *errors, *(() if body is None else _WITH_BODY)})
    extra: dict[str, Any] = {"security": [{SECURITY: []}]}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": _json(body)}
    return {
        "status_code": status,
        "response_class": Response,
        "openapi_extra": extra,
        "responses": {
            status: {"description": "Done.", "content": _json(answer)},
            **{error: {"description": _ERRORS[error], "content": _json(ErrorBody)} for error in statuses},
        },
    }


def answered(value: msgspec.Struct, *, status: int = 200) -> Response:
    """The JSON of an answer."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _json(struct: Any) -> dict[str, Any]:
    (reference,), _ = msgspec.json.schema_components([struct], ref_template=COMPONENTS)
    return {"application/json": {"schema": reference}}
