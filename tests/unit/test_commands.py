"""What the command line refuses before it asks the store: exit code 2 and a sentence."""

import pytest
from typer.testing import CliRunner

from deploy.cli import app


@pytest.mark.parametrize("option", ["--concurrent-requests", "--tokens-per-minute"])
@pytest.mark.parametrize("verb", ["create", "update"])
@pytest.mark.parametrize("value", ["99999999999999999999", "1000000001", "-1", "many"])
def test_a_limit_that_cannot_be_stored_is_wrong_usage(verb: str, option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["tenants", verb, "acme", option, value])
    assert result.exit_code == 2
    assert option in result.output
