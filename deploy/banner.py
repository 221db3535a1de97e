"""What `sluice serve` prints once all is ready: configuration, addresses, the first key, a line to paste."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from deploy.data_directory import DataDirectory
from deploy.first_start import FirstStart
from engine.protocol import EngineDescription

QUESTION = "What is the capital of France?"


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where each part listens."""

    api: str
    admin: str
    gateway_metrics: str
    engine: str


def text(
    *,
    addresses: Addresses,
    engine: EngineDescription,
    first: FirstStart,
    directory: DataDirectory,
    num_workers: int,
    seconds: float,
) -> str:
    """Everything a person needs to use what runs now."""
    sections = [
        _configuration(engine, directory, num_workers),
        _addresses(addresses, first),
        _key(first, directory),
        f"Try it:\n\n{curl(addresses.api, engine.model, directory)}",
        f"Ready in {seconds:.1f} s. Ctrl-C stops everything.",
    ]
    return "\n" + "\n\n".join(sections) + "\n"


def curl(api: str, model: str, directory: DataDirectory) -> str:
    """A command that asks the model a question with the first key; it works as pasted, on every start."""
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    if directory.first_key.exists():
        key = f"$(cat {shlex.quote(str(directory.first_key))})"
    else:
        key = "$SLUICE_API_KEY"
    return (
        f'curl {api}/v1/chat/completions -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def _configuration(engine: EngineDescription, directory: DataDirectory, num_workers: int) -> str:
    values = {
        "model": f"{engine.model} ({engine.dtype} on {engine.device})",
        **msgspec.to_builtins(engine.limits),
        "gateway workers": num_workers,
        "data directory": directory.path,
        "logs": directory.logs,
    }
    return _table("Configuration in force", values)


def _addresses(addresses: Addresses, first: FirstStart) -> str:
    values = {
        "API": f"{addresses.api}/v1",
        "API documentation": f"{addresses.api}/docs",
        "Admin": addresses.admin,
        "Metrics": f"{addresses.gateway_metrics}  (engine: {addresses.engine}/metrics)",
    }
    if first.invite_token is not None:
        values["First sign-in"] = f"{addresses.admin}/setup/{first.invite_token}  (once, within 24 hours)"
    return _table("Addresses", values)


def _key(first: FirstStart, directory: DataDirectory) -> str:
    if first.key_secret is not None:
        return f"First API key, shown this once and kept in {directory.first_key}:\n\n  {first.key_secret}"
    if directory.first_key.exists():
        return f"The first API key is in {directory.first_key}."
    where = shlex.quote(str(directory.path))
    return f"Make an API key with: sluice keys create --tenant NAME --data-dir {where}"


def _table(title: str, values: Mapping[str, object]) -> str:
    width = max(len(name) for name in values)
    return "\n".join([f"{title}:", *(f"  {name:<{width}}  {value}" for name, value in values.items())])
