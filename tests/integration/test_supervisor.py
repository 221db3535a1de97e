"""The supervisor over real processes: it restarts what dies, stops side by side what belongs together."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deploy import probe
from deploy.listener import bind, local_url
from deploy.metrics_server import MetricsServer
from deploy.supervisor import Child, ChildFailed, ChildSpec, Supervisor

SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
# Ends only once both know that they are to end, so never when one is asked after the other.
WAITS_FOR_BOTH = """
import pathlib, signal, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
def end(*_):
    (folder / f"{name}-asked").touch()
    while len(list(folder.glob("*-asked"))) < 2:
        time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(folder / f"{name}-up").touch()
time.sleep(60)
"""


class Running:
    """A supervisor that is stopped at the end, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.supervisor = Supervisor(log_directory=folder / "logs", say=self.said.append)

    async def start(self, name: str, script: str, *arguments: str, **spec: object) -> Child:
        command = (sys.executable, "-c", script, *arguments)
        return await self.supervisor.start(ChildSpec(name=name, command=command, **spec))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    yield made
    await made.supervisor.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - other processes set no event of ours
            await asyncio.sleep(0.01)


async def is_up(child: Child) -> bool:
    return child.last_line() == "up"


async def test_a_child_that_dies_is_reported_and_started_again(running: Running) -> None:
    child = await running.start("one", SLEEPS)
    await child.until_ready(lambda: is_up(child))
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.pid != first)
    assert running.said == ["one was killed by SIGKILL; starting it again in 0.25 s"]


async def test_a_child_that_ends_before_it_is_ready_says_why(running: Running) -> None:
    child = await running.start("one", "print('sluice: no such thing')")

    async def never() -> bool:
        return False

    with pytest.raises(ChildFailed, match=r"^one: no such thing$"):
        await child.until_ready(never)


async def test_the_log_of_the_start_before_is_kept(running: Running) -> None:
    """It told why there had to be another start."""
    for word in ("first", "second", "third"):
        child = await running.start("child", f"print({word!r}, flush=True); import time; time.sleep(60)")
        await child.until_ready(lambda child=child, word=word: _says(child, word))
        await child.stop()
    logs = running.folder / "logs"
    assert (logs / "child.log").read_text() == "third\n"
    assert (logs / "child.previous.log").read_text() == "second\n"


async def _says(child: Child, word: str) -> bool:
    return child.last_line() == word


async def test_children_that_belong_together_are_stopped_side_by_side(running: Running) -> None:
    for name in ("one", "two"):
        await running.start(
            name, WAITS_FOR_BOTH, str(running.folder), name, stops_with="pair", stop_seconds=10
        )
    await until(lambda: len(list(running.folder.glob("*-up"))) == 2)
    await running.supervisor.stop()
    running.supervisor = Supervisor(log_directory=running.folder, say=running.said.append)
    assert running.said == []  # nobody had to be killed


async def test_a_proxy_of_the_environment_is_not_asked_for_our_own_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    closed = bind("127.0.0.1", 0, option="port")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", local_url(closed))
    closed.close()
    metrics = MetricsServer(host="127.0.0.1", port=0)
    try:
        assert await probe.is_up(metrics.url)
    finally:
        metrics.stop()
