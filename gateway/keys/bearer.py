"""Which key an Authorization header brings. One of the wrong kind is refused at once.

A tenant's keys open `/v1`, an operator's (`sk-op-…`) open `/admin/v1`, and neither opens the other.
"""

from typing import Final

from gateway.errors import InvalidApiKey

OPERATOR_ENVIRONMENT: Final = "op"
_OPERATOR_PREFIX: Final = f"sk-{OPERATOR_ENVIRONMENT}-"


def tenant_key(authorization: str | None) -> str:
    """What is presented as an API key. Raises InvalidApiKey."""
    value = _bearer(authorization)
    if value.startswith(_OPERATOR_PREFIX):
        raise InvalidApiKey("This is an operator key. Here an API key of a tenant is wanted.")
    return value


def operator_key(authorization: str | None) -> str:
    """What is presented as an operator key. Raises InvalidApiKey."""
    value = _bearer(authorization)
    if not value.startswith(_OPERATOR_PREFIX):
        raise InvalidApiKey("An operator key is wanted here (sk-op-…). API keys of tenants open /v1 only.")
    return value


def _bearer(authorization: str | None) -> str:
    if authorization is None:
        raise InvalidApiKey(
            "You didn't provide an API key. Send it in a header: Authorization: Bearer YOUR_KEY."
        )
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise InvalidApiKey("The Authorization header must be: Authorization: Bearer YOUR_KEY.")
    return value.strip()
