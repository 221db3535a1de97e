"""What administration refuses, as the errors that the gateway tells its callers."""

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from gateway.api.error_response import render_gateway_error
from gateway.errors import AlreadyTaken, GatewayError, InvalidRequest, NotFound
from gateway.tenants.errors import AdministrationError, AlreadyExists, NoSuchThing


async def render_refused_change(request: Request, error: Exception) -> Response:
    """The response to what was not done."""
    assert isinstance(error, AdministrationError)
    return await render_gateway_error(request, _gateway_error(error))


async def render_bad_parameter(request: Request, error: Exception) -> Response:
    """The response to a parameter of the URL that cannot be used."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    message = f"Invalid value for '{param}': {str(first['msg']).lower()}."
    return await render_gateway_error(request, InvalidRequest(message, param=param, code="invalid_value"))


def _gateway_error(error: AdministrationError) -> GatewayError:
    match error:
        case NoSuchThing():
            return NotFound(str(error), code="not_found")
        case AlreadyExists():
            return AlreadyTaken(str(error))
        case _:
            return InvalidRequest(str(error), code="invalid_value")
