"""What every route of the gateway answers to whom. One that is not here fails the tests that walk them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fastapi.routing import iter_route_contexts

from gateway.api.application import Lifespan, build_application
from tests.builders.bodies import chat_body, completion_body

Route = tuple[str, str]  # method and path


@dataclass(frozen=True)
class Open:
    """Tells everybody the same, and nothing of any tenant."""


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """Opens with a tenant's key. `foreign` is what another tenant's key is told: 404 where the path names
    something of ours, 200 where there is nothing of ours to name and it only does its own work.
    With an `upload` a form is sent instead of a body.
    """

    body: object = None
    upload: bytes | None = None
    foreign: int = 404


@dataclass(frozen=True, kw_only=True)
class Operators:
    """Opens with an operator key that has the route's scope."""

    body: object = None
    query: Mapping[str, str] = field(default_factory=dict)


Rule = Open | Tenants | Operators

RULES: Final[dict[Route, Rule]] = {
    ("GET", "/healthz"): Open(),
    ("GET", "/readyz"): Open(),
    ("GET", "/docs"): Open(),
    ("GET", "/openapi.json"): Open(),
    ("POST", "/v1/chat/completions"): Tenants(body=chat_body(), foreign=200),
    ("POST", "/v1/completions"): Tenants(body=completion_body(), foreign=200),
    ("GET", "/v1/models"): Tenants(foreign=200),
    ("GET", "/v1/models/{model_id}"): Tenants(foreign=200),
    ("POST", "/v1/files"): Tenants(upload=b"{}\n", foreign=200),
    ("GET", "/v1/files"): Tenants(foreign=200),
    ("GET", "/v1/files/{file_id}"): Tenants(),
    ("GET", "/v1/files/{file_id}/content"): Tenants(),
    ("DELETE", "/v1/files/{file_id}"): Tenants(),  # behind all that want the file to be there
    ("POST", "/v1/batches"): Tenants(
        body={
            "input_file_id": "{input_file_id}",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
    ),
    ("GET", "/v1/batches"): Tenants(foreign=200),
    ("GET", "/v1/batches/{batch_id}"): Tenants(),
    ("POST", "/v1/batches/{batch_id}/cancel"): Tenants(),
    ("POST", "/admin/v1/tenants"): Operators(body={"name": "new"}),
    ("GET", "/admin/v1/tenants"): Operators(),
    ("GET", "/admin/v1/tenants/{tenant}"): Operators(),
    ("PATCH", "/admin/v1/tenants/{tenant}"): Operators(body={"weight": 7}),
    ("POST", "/admin/v1/projects"): Operators(body={"tenant": "ours-canary", "name": "new"}),
    ("GET", "/admin/v1/projects"): Operators(),
    ("PATCH", "/admin/v1/projects/{project}"): Operators(body={"weight": 7}),
    ("POST", "/admin/v1/keys"): Operators(body={"tenant": "ours-canary", "name": "new"}),
    ("GET", "/admin/v1/keys"): Operators(),
    ("GET", "/admin/v1/keys/{key}"): Operators(),
    ("PATCH", "/admin/v1/keys/{key}"): Operators(body={"name": "renamed"}),
    ("POST", "/admin/v1/keys/{key}/rotate"): Operators(body={}),
    ("POST", "/admin/v1/keys/{key}/revoke"): Operators(),
    ("PUT", "/admin/v1/limits"): Operators(
        body={"tenant": "ours-canary", "kind": "tokens_per_day", "value": 5_000}
    ),
    ("GET", "/admin/v1/limits"): Operators(query={"tenant": "ours-canary"}),
    ("DELETE", "/admin/v1/limits"): Operators(query={"tenant": "ours-canary", "kind": "tokens_per_day"}),
    ("GET", "/admin/v1/usage"): Operators(),
    ("GET", "/admin/v1/audit"): Operators(),
}


def all_routes(lifespan: Lifespan) -> list[Route]:
    """Every route that the application has."""
    contexts = list(iter_route_contexts(build_application(lifespan).framework.routes))
    return [
        (method, context.path_format or "?")
        for context in contexts
        for method in sorted((context.methods or {"?"}) - {"HEAD"})
    ]
