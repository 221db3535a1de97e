"""Fixtures of all tests live in plugins named after what they provide."""

from importlib.util import find_spec

pytest_plugins = [
    plugin
    for plugin in ("tests.fixtures_postgres", "tests.fixtures_model", "tests.fixtures_gateway")
    if find_spec(plugin) is not None
]
