"""The OpenAPI document and a page that shows it, which loads nothing from elsewhere and so works offline."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import jinja2
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from gateway.api.openapi import openapi_document

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{{ info.title }} API</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #8886; padding: 1rem 0 }
h2 { font-size: 1.1rem; margin: 0 } code, pre { font-family: ui-monospace, monospace; font-size: .9rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td { padding: .2rem .8rem .2rem 0; vertical-align: top }
pre { overflow: auto; padding: .8rem; background: #8882; border-radius: .4rem }
</style></head><body>
<h1>{{ info.title }} API <small>{{ info.version }}</small></h1>
<p>{{ info.description }} Keys go in a header: <code>Authorization: Bearer sk-…</code>.
The whole document: <a href="/openapi.json">openapi.json</a>.</p>
{% for operation in operations %}
<section><h2><code>{{ operation.method }} {{ operation.path }}</code></h2>
<p>{{ operation.summary }}</p>
{% if operation.fields %}<table>{% for name, kind in operation.fields.items() %}
<tr><td><code>{{ name }}</code></td><td><code>{{ kind }}</code></td></tr>{% endfor %}</table>{% endif %}
<table>{% for status, text in operation.responses.items() %}
<tr><td>{{ status }}</td><td>{{ text }}</td></tr>{% endfor %}</table>
{% if operation.method == "POST" %}<pre>{{ example }} {{ base_url }}{{ operation.path }} …</pre>{% endif %}
</section>
{% endfor %}
</body></html>
"""
_EXAMPLE: Final = "curl -H 'Authorization: Bearer sk-…' -H 'Content-Type: application/json'"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One route as the page shows it."""

    method: str
    path: str
    summary: str
    fields: dict[str, str]
    responses: dict[str, str]


class Docs:
    """Of an application with all its routes. Made when first asked for: who starts need not wait for that."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    # Not `async`: they run in a thread, as making the document would hold up every request for 0.15 s.

    def serve_document(self) -> JSONResponse:
        """The document."""
        return JSONResponse(self._document)

    def serve_page(self, request: Request) -> HTMLResponse:
        """The document as a page."""
        page = (
            jinja2.Environment(autoescape=True)
            .from_string(_PAGE)
            .render(
                info=self._document["info"],
                operations=list(_operations(self._document)),
                example=_EXAMPLE,
                base_url=str(request.base_url).rstrip("/"),
            )
        )
        return HTMLResponse(page)

    @cached_property
    def _document(self) -> dict[str, Any]:
        return openapi_document(self._app.routes)


def add_docs(app: FastAPI) -> None:
    """Adds `/openapi.json` and `/docs`, which show all routes but themselves."""
    docs = Docs(app)
    app.add_api_route("/openapi.json", docs.serve_document, include_in_schema=False)
    app.add_api_route("/docs", docs.serve_page, include_in_schema=False)


def _operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            yield Operation(
                method=method.upper(),
                path=path,
                summary=operation["summary"],
                fields=dict(_fields(document, operation)),
                responses={
                    status: response["description"] for status, response in operation["responses"].items()
                },
            )


def _fields(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    body = operation.get("requestBody")
    if body is None:
        return
    (content,) = body["content"].values()
    whole = content["schema"]
    for part in whole.get("allOf", [whole]):
        schema = (
            document["components"]["schemas"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        )
        for name, field in schema["properties"].items():
            yield name, _kind(field)


def _kind(field: dict[str, Any]) -> str:
    """A type in a few words."""
    if "anyOf" in field:
        return " or ".join(kind for part in field["anyOf"] if (kind := _kind(part)) != "null")
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    bounds = [f"{sign} {field[key]}" for key, sign in _BOUNDS.items() if key in field]
    return ", ".join([str(field.get("type", "any")), *bounds])


_BOUNDS: Final = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "maxItems": "at most",
    "minItems": "at least",
}
