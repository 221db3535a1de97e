"""The embedded server through start, stop, kill and shared use."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from deploy.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError, find_running, running, start

OWNER_PROGRAM = """
import sys, time
from pathlib import Path
from deploy.embedded_postgres import start
server = start(Path(sys.argv[1]))
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """One for all tests that leave the cluster whole: making one is what takes long."""
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as directory:
        yield Path(directory)


@pytest.fixture
def new_data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as directory:
        yield Path(directory)


@pytest.fixture
def server(data_dir: Path) -> Iterator[EmbeddedPostgres]:
    server = start(data_dir)
    yield server
    server.stop()


@pytest.fixture
def frozen(server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that stands still: it is there, and says nothing."""
    os.kill(server.pid, signal.SIGSTOP)
    yield server
    os.kill(server.pid, signal.SIGCONT)


def store_answer(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS answer")
        connection.execute("CREATE TABLE answer AS SELECT 42 AS value")


def stored_answer(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT value FROM answer").fetchone()
    assert row is not None
    return int(row[0])


def ended(*arguments: str) -> tuple[int, str, str]:
    """Status, output and errors of a command that takes no longer than a person waits."""
    command = [sys.executable, "-m", "deploy", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    return done.returncode, done.stdout, done.stderr


def processes_in(directory: Path) -> list[str]:
    """Of all processes, those that work in `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            works_in = os.readlink(process / "cwd")
        except OSError:
            continue
        if works_in == str(directory):
            found.append(process.name)
    return found


def test_data_survives_a_stop_and_a_start(data_dir: Path) -> None:
    first = start(data_dir)
    store_answer(first.url)
    first.stop()
    second = start(data_dir)
    try:
        assert stored_answer(second.url) == 42
    finally:
        second.stop()


def test_stopping_leaves_no_process_even_with_clients_connected(data_dir: Path) -> None:
    server = start(data_dir)
    with closing(psycopg.connect(server.url)):
        server.stop()
    assert processes_in(data_dir / "postgres") == []


def test_stopping_twice_is_harmless(data_dir: Path) -> None:
    server = start(data_dir)
    server.stop()
    server.stop()
    assert find_running(data_dir) is None


def test_a_second_owner_is_refused_with_one_line(data_dir: Path, server: EmbeddedPostgres) -> None:
    with pytest.raises(EmbeddedPostgresError, match="Another Sluice runs on"):
        start(data_dir, lock_timeout_seconds=0.1)


def test_a_path_too_long_for_a_socket_works(new_data_dir: Path) -> None:
    server = start(new_data_dir / ("deep" * 30))
    sockets = Path(str(make_url(server.url).query["host"]))
    try:
        store_answer(server.url)
    finally:
        server.stop()
    assert not sockets.exists()


def test_it_listens_on_no_network_address(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url) as connection:
        row = connection.execute("SHOW listen_addresses").fetchone()
    assert row == ("",)


def test_a_command_uses_the_running_server_and_leaves_it_running(
    data_dir: Path, server: EmbeddedPostgres
) -> None:
    with running(data_dir) as url:
        assert url == server.url
    assert find_running(data_dir) == server.url


@pytest.mark.usefixtures("frozen")
def test_a_command_says_soon_that_the_server_does_not_answer(data_dir: Path) -> None:
    line = f"sluice: The database in {data_dir} does not answer.\n"
    assert ended("usage", "--data-dir", str(data_dir)) == (1, "", line)


def test_a_command_says_soon_that_a_server_elsewhere_does_not_answer(frozen: EmbeddedPostgres) -> None:
    line = "sluice: the database cannot be reached: connection timeout expired\n"
    assert ended("usage", "--database-url", frozen.url) == (1, "", line)


def test_a_command_starts_a_server_for_itself_when_none_runs(data_dir: Path) -> None:
    with running(data_dir) as url:
        store_answer(url)
    assert find_running(data_dir) is None
    assert processes_in(data_dir / "postgres") == []


def test_commands_at_once_share_one_server(new_data_dir: Path) -> None:
    program = "import sys; from pathlib import Path; from deploy.embedded_postgres import running\n"
    program += "with running(Path(sys.argv[1])) as url: print(url)"
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(new_data_dir)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    answers = [(command.communicate()[0], command.returncode) for command in commands]
    assert len(set(answers)) == 1
    assert answers[0][1] == 0
    assert processes_in(new_data_dir / "postgres") == []


def test_a_directory_that_cannot_be_made_is_reported_in_one_line(data_dir: Path) -> None:
    (data_dir / "file").write_text("in the way")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot be used: Not a directory\.$"):
        start(data_dir / "file" / "data")


def test_a_server_that_died_says_so(server: EmbeddedPostgres) -> None:
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    assert server.has_died()


def test_an_owner_killed_hard_leaves_a_server_that_the_next_owner_takes_over(data_dir: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        orphan = int(owner.stdout.readline())
        owner.kill()
    next_server = start(data_dir)
    try:
        assert processes_in(data_dir / "postgres")
        assert next_server.pid != orphan
        assert not Path(f"/proc/{orphan}").exists() or is_zombie(orphan)
    finally:
        next_server.stop()


def is_zombie(pid: int) -> bool:
    """Ended, though whoever adopted it has not collected it yet."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_server_killed_hard_with_clients_connected_starts_again(data_dir: Path) -> None:
    server = start(data_dir)
    with closing(psycopg.connect(server.url)):
        store_answer(server.url)
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        again = start(data_dir)
    try:
        assert stored_answer(again.url) == 42
    finally:
        again.stop()


def test_a_pid_file_naming_another_program_does_not_stop_the_start(data_dir: Path) -> None:
    start(data_dir).stop()
    pid_file = data_dir / "postgres" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{data_dir}/postgres\n1\n5432\n/tmp\n\n1 1\nready\n")
    server = start(data_dir)
    try:
        store_answer(server.url)
    finally:
        server.stop()


def test_a_half_made_cluster_is_made_anew(new_data_dir: Path) -> None:
    (new_data_dir / "postgres.new").mkdir()
    (new_data_dir / "postgres.new" / "PG_VERSION").write_text("18\n")
    start(new_data_dir).stop()
    assert not (new_data_dir / "postgres.new").exists()


def test_a_cluster_that_cannot_start_is_reported_in_one_line(new_data_dir: Path) -> None:
    start(new_data_dir).stop()
    (new_data_dir / "postgres" / "global" / "pg_control").write_bytes(b"")
    with pytest.raises(EmbeddedPostgresError, match="Postgres did not start") as caught:
        start(new_data_dir)
    assert "\n" not in str(caught.value)
