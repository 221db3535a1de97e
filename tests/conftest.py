"""Fixtures of all tests live in plugins named after what they provide."""

pytest_plugins = [
    "tests.fixtures_model",
    "tests.fixtures_postgres",
    "tests.fixtures_serve",
]
