"""Bytes of a JSON body to one struct, or an error that names the parameter. Pure."""

import re
from typing import Final, TypeVar

import msgspec

from gateway.errors import InvalidRequest

Body = TypeVar("Body")

_AT_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<field>[^`]+)`")


def decode(body: bytes, shape: type[Body]) -> Body:
    """The struct in a body. Raises InvalidRequest."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _naming_the_parameter(str(error)) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from error


def _naming_the_parameter(text: str) -> InvalidRequest:
    """msgspec says "Expected `str`, got `int` - at `$.messages[0].role`"."""
    found = _AT_PATH.match(text)
    assert found is not None
    path = (found["path"] or "$").removeprefix("$").removeprefix(".")
    missing = _MISSING.match(found["what"])
    if missing is not None:
        param = f"{path}.{missing['field']}".removeprefix(".")
        return InvalidRequest(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    if not path:
        return InvalidRequest(f"The body must be a JSON object: {found['what']}.")
    return InvalidRequest(
        f"Invalid value for '{path}': {found['what'].lower()}.", param=path, code="invalid_value"
    )
