"""`sluice serve` as a set of processes: they start, are replaced when they die, and all end."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.builders.sluice_process import SluiceProcess, alive, wait_until
from tests.builders.tiny_llama import write_tiny_llama
from tests.fakes.observer import latest_status


@pytest.fixture(scope="module")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model of a few thousand weights, named `tiny`."""
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[SluiceProcess]:
    running = SluiceProcess(tmp_path_factory.mktemp("tiny"), model=tiny_model_dir)
    yield running
    running.stop()


def ask(running: SluiceProcess, *, max_tokens: int = 3, **body: object) -> httpx.Response:
    return httpx.post(
        f"{running.api}/v1/completions",
        headers={"Authorization": f"Bearer {running.key}"},
        json={"model": "tiny", "prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, **body},
        timeout=30,
    )


def test_it_prints_what_a_person_needs(tiny: SluiceProcess) -> None:
    assert tiny.key in tiny.output
    assert (tiny.data_dir / "first-key").stat().st_mode & 0o777 == 0o600
    assert (tiny.data_dir / "secrets.toml").stat().st_mode & 0o777 == 0o600
    assert "max_num_batched_tokens" in tiny.output
    assert httpx.get(tiny.setup_link).status_code == 200
    assert httpx.get(f"{tiny.api}/docs").status_code == 200
    assert ask(tiny).status_code == 200


@pytest.mark.slow
def test_a_second_ctrl_c_ends_what_still_runs(tmp_path: Path, tiny_model_dir: Path) -> None:
    running = SluiceProcess(
        tmp_path / "with space",
        model=tiny_model_dir,
        settings={"engine.runner": "scripted", "engine.scripted_step_ms": 100},
    )
    client = threading.Thread(target=lambda: _post(running, max_tokens=200))
    client.start()
    wait_until(lambda: _num_running(running) == 1, seconds=10, what="the request to run")
    running.command("tenants", "list")  # the space in the path is none of its business
    running.process.send_signal(signal.SIGINT)
    running.wait_for("stopping")
    time.sleep(1.5)  # a signal sooner than that counts as the same Ctrl-C
    assert client.is_alive(), "the answer still runs"
    began = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - began < 8
    assert "starting it again" not in running.output
    client.join(10)


def test_commands_work_beside_a_running_server(tiny: SluiceProcess) -> None:
    tiny.command("tenants", "create", "beside", "--concurrent-requests", "1")
    key = tiny.command("keys", "create", "--tenant", "beside", "--quiet").strip()
    answer = httpx.get(f"{tiny.api}/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert [model["id"] for model in answer.json()["data"]] == ["tiny"]
    again = subprocess.run(
        [sys.executable, "-m", "deploy", "tenants", "create", "beside", "--data-dir", str(tiny.data_dir)],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 1
    assert len(again.stderr.strip().splitlines()) == 1
    assert "exists already" in again.stderr


@pytest.mark.slow
def test_two_of_them_run_side_by_side(tiny: SluiceProcess, tmp_path: Path, tiny_model_dir: Path) -> None:
    other = SluiceProcess(tmp_path, model=tiny_model_dir)
    try:
        assert ask(other).status_code == 200
        assert ask(tiny).status_code == 200
    finally:
        assert other.stop() == 0


def test_a_killed_engine_is_answered_with_503_at_once_and_is_back_soon(tiny: SluiceProcess) -> None:
    streams_end = threading.Event()

    def stream() -> None:
        ask(tiny, max_tokens=400)
        streams_end.set()

    background = threading.Thread(target=stream)
    background.start()
    os.kill(tiny.pid_of("deploy.engine_process"), signal.SIGKILL)
    wait_until(lambda: ask(tiny).status_code == 503, seconds=2, what="a 503")
    began = time.monotonic()
    refused = ask(tiny)
    assert refused.status_code == 503
    assert time.monotonic() - began < 1
    assert refused.json()["error"]["code"] == "server_is_overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    assert streams_end.wait(5), "a request that ran when the engine died hangs"
    background.join()
    wait_until(lambda: ask(tiny).status_code == 200, seconds=15, what="the engine to serve again")
    tiny.wait_for("engine was killed by SIGKILL")


def test_killed_workers_and_pages_come_back(tiny: SluiceProcess) -> None:
    for module in ("deploy.gateway_process", "deploy.admin_process"):
        old = tiny.pid_of(module)
        os.kill(old, signal.SIGKILL)
        wait_until(
            lambda module=module, old=old: (
                old not in tiny.pids() and any(module in command for command in tiny.pids().values())
            ),
            seconds=20,
            what=f"another {module}",
        )
    wait_until(lambda: _status(f"{tiny.api}/readyz") == 200, seconds=20, what="the gateway")
    wait_until(lambda: _status(f"{tiny.admin}/healthz") == 200, seconds=20, what="the admin UI")
    assert ask(tiny).status_code == 200


def test_while_it_drains_running_answers_finish_and_new_connections_are_refused(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    running = SluiceProcess(
        tmp_path, model=tiny_model_dir, settings={"engine.runner": "scripted", "engine.scripted_step_ms": 10}
    )
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(ask(running, max_tokens=300)))
    client.start()
    wait_until(lambda: _num_running(running) == 1, seconds=10, what="the request to run")
    running.process.send_signal(signal.SIGTERM)
    wait_until(
        lambda: _status(f"{running.api}/healthz") == 0, seconds=2, what="new connections to be refused"
    )
    client.join(20)
    assert [(answer.status_code, answer.json()["usage"]["completion_tokens"]) for answer in answers] == [
        (200, 300)
    ]
    assert running.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_and_leaves_no_process(
    number: signal.Signals, tmp_path: Path, tiny_model_dir: Path
) -> None:
    running = SluiceProcess(tmp_path, model=tiny_model_dir)
    pids = running.pids()
    assert len(pids) > 4
    assert running.stop(number) == 0
    assert alive(pids) == {}


@pytest.mark.slow
def test_children_end_when_the_supervisor_is_killed_and_the_next_start_takes_over(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    killed = SluiceProcess(tmp_path, model=tiny_model_dir)
    pids = killed.pids()
    killed.stop(signal.SIGKILL)
    wait_until(lambda: alive(pids) == {}, seconds=30, what="the children and Postgres to end")
    successor = SluiceProcess(tmp_path, model=tiny_model_dir)
    try:
        assert successor.key not in successor.output  # shown once, on the empty store
        assert ask(successor).status_code == 200
    finally:
        assert successor.stop() == 0


def fails(*arguments: str, **environment: str) -> str:
    """The one line that a `sluice` command ends with."""
    done = subprocess.run(
        [sys.executable, "-m", "deploy", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def test_foreseeable_failures_are_one_line(tmp_path: Path, tiny_model_dir: Path) -> None:
    serve = ("serve", "--data-dir", str(tmp_path / "data"), "--admin-port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "--port" in fails(*serve, "--port", port, "--model", str(tiny_model_dir))
    serve = (*serve, "--port", "0")
    assert "no model 'nonsense'" in fails(*serve, "--model", "nonsense")
    assert "max_num_seqs" in fails(*serve, SLUICE_SCHEDULER__MAX_NUM_SEQS="many")
    assert "no file that can be read" in fails(*serve, "--config", str(tmp_path / "missing.toml"))
    misspelt = tmp_path / "misspelt.toml"
    misspelt.write_text("[schedulr]\nmax_num_seqs = 4\n")
    assert "unknown schedulr" in fails(*serve, "--config", str(misspelt))
    assert "SLUICE_SECRETS__KEY_PEPPER" in fails(
        "gateway", SLUICE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/x"
    )
    assert "cannot be reached" in fails(
        "tenants", "list", SLUICE_DATABASE_URL="postgresql+psycopg://nobody@127.0.0.1:1/none"
    )
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    assert "engine: models of the kind None are not supported" in fails(*serve, "--model", str(broken))


def _post(running: SluiceProcess, **body: object) -> None:
    """Asks, and does not mind being cut off."""
    with contextlib.suppress(httpx.TransportError):
        ask(running, **body)


def _num_running(running: SluiceProcess) -> int:
    status = asyncio.run(latest_status(running.engine, running.shared_secret, lambda _: True))
    return status.interactive.running


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return 0
