"""Whatever the API's own document allows gets an answer or an error of the published shape, never a 500."""

import asyncio

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.builders.gateway_under_test import GatewayUnderTest
from tests.fakes.keys import GOOD_KEY
from tests.fakes.websocket_engine import answer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning"),  # the library's own
]

STATUSES = {200, 400, 404, 503, 504}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_bodies_made_from_the_schema(gateway: GatewayUnderTest, path: str) -> None:
    gateway.engine.script = answer(5, 6, 7)
    await asyncio.to_thread(post_many, gateway.url, path)


def post_many(url: str, path: str) -> None:
    """Sends bodies that the document allows, most of them with a model that exists."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]

    @given(case=operation.as_strategy())
    @settings(
        max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )
    def post(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict):
            case.body["model"] = "tiny"
        response = httpx.post(
            url + path, json=case.body, headers={"Authorization": f"Bearer {GOOD_KEY}"}, timeout=20
        )
        assert response.status_code in STATUSES, (case.body, response.text)
        if response.status_code != 200:
            named = set(response.json()["error"]) - {"reason", "wait_reason"}
            assert named == {"message", "type", "param", "code"}

    post()
