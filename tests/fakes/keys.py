"""Keys without a store."""

from gateway.errors import InvalidApiKey
from gateway.keys.caller import Caller
from gateway.keys.scope import ALL_SCOPES
from gateway.tenants.ids import KeyId, ProjectId, TenantId

GOOD_KEY = "sk-test-aaaaaaaaaaaa-" + "A" * 49


class FakeKeys:
    """Knows one key, `GOOD_KEY`, of the tenant `acme`."""

    caller = Caller(
        tenant=TenantId("ten_acme"),
        tenant_name="acme",
        project=ProjectId("proj_default"),
        project_name="default",
        key=KeyId("aaaaaaaaaaaa"),
        weight=1.0,
        scopes=ALL_SCOPES,
    )

    def __init__(self) -> None:
        self.failure: Exception | None = None

    async def authenticate(self, authorization: str | None) -> Caller:
        """The caller of `GOOD_KEY`; raises `failure` when it is set."""
        if self.failure is not None:
            raise self.failure
        if authorization != f"Bearer {GOOD_KEY}":
            raise InvalidApiKey("Incorrect API key provided.")
        return self.caller
