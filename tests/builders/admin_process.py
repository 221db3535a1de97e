"""The admin UI as a process of its own, as in production, for tests that need real HTTP and signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Self

import httpx

from tests.builders.admin_site import ENGINE_SECRET, KEY_PEPPER, NO_ENGINE

_PROGRAM = """
import asyncio
from admin_ui.server import serve
from admin_ui.settings import load_settings
asyncio.run(serve(load_settings()))
"""
_START_SECONDS = 20.0


class AdminProcess:
    """A context manager around the process; it answers when the block begins."""

    def __init__(self, database_url: str, *, engines: tuple[str, ...] = (NO_ENGINE,)) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            "PATH": os.environ["PATH"],
            "SLUICE_DATABASE_URL": database_url,
            "SLUICE_ADMIN__PORT": str(self.port),
            "SLUICE_GATEWAY__ENGINES": ",".join(engines),
            "SLUICE_SECRETS": json.dumps({"key_pepper": KEY_PEPPER, "engine_shared": ENGINE_SECRET}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([sys.executable, "-c", _PROGRAM], env=self._environment)
        _until_it_answers(f"{self.url}/healthz", self._process)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def seconds_to_stop(self) -> float:
        """Sends SIGTERM and waits for the end. Raises TimeoutExpired when it takes over ten seconds."""
        assert self._process is not None
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(10)
        return time.monotonic() - begun


def _until_it_answers(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            httpx.get(url).raise_for_status()
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the admin UI did not start")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
