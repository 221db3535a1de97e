"""Every place of the management API where a text comes in, as its own document says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from gateway.api.openapi import openapi_document
from tests.builders.route_rules import RULES, Operators, Route


@dataclass(frozen=True)
class Place:
    """`where` is path, query or body; `is_list` where several texts are wanted."""

    route: Route
    where: str
    name: str
    is_list: bool = False

    def request(self, text: str, known: Mapping[str, str]) -> dict[str, Any]:
        """A request that would do, but for the text in this place; `known` is what its path may name."""
        rule = RULES[self.route]
        assert isinstance(rule, Operators)
        path, query = dict(known), dict(rule.query)
        body = dict(rule.body) if isinstance(rule.body, dict) else {}
        inputs: dict[str, dict[str, Any]] = {"path": path, "query": query, "body": body}
        inputs[self.where][self.name] = [text] if self.is_list else text
        quoted = {name: value.replace("\0", "%00") for name, value in path.items()}
        return {
            "method": self.route[0],
            "url": self.route[1].format(**quoted),
            "params": query,
            "json": None if rule.body is None else body,
        }


def text_places(app: FastAPI) -> list[Place]:
    """All of them, of every route that operators may call."""
    document = openapi_document(app.routes)
    return [
        place
        for route, rule in RULES.items()
        if isinstance(rule, Operators)
        for place in _places_of(route, document["paths"][route[1]][route[0].lower()], document)
    ]


def _places_of(route: Route, operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Place]:
    for parameter in operation.get("parameters", ()):
        if _takes(parameter["schema"], "string", document):
            yield Place(route, parameter["in"], parameter["name"])
    if "requestBody" in operation:
        body = _resolved(operation["requestBody"]["content"]["application/json"]["schema"], document)
        for name, schema in body["properties"].items():
            if _takes(schema, "string", document):
                yield Place(route, "body", name, is_list=_takes(schema, "array", document))


def _takes(schema: Mapping[str, Any], kind: str, document: Mapping[str, Any]) -> bool:
    """Whether a value may be of a JSON type, itself or in a list."""
    schema = _resolved(schema, document)
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    is_text = kind == "string" and isinstance((schema.get("enum") or [None])[0], str)
    return schema.get("type") == kind or is_text or any(_takes(part, kind, document) for part in parts)


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found
