"""A Postgres server of one data directory, owned by the process that starts it.

    start(data_dir)        -> EmbeddedPostgres   `sluice serve`; .url, .stop()
    running(data_dir)      -> context of a URL   commands: the running server, or one for the moment
    find_running(data_dir) -> URL | None

Two lock files, both let go by the kernel when their holder dies:
`postgres.owner` is held, exclusively, by the process whose server it is; `postgres.users` is shared by the
commands that use a server which is not theirs, so that one started for the moment outlives them.
It knows nothing of the tables inside.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

import psycopg

from deploy.postgres_directory import (
    DATABASE,
    SUPERUSER,
    EmbeddedPostgresError,
    PostgresDirectory,
    environment,
    existing,
    prepare,
)

__all__ = [
    "DirectoryInUse",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "find_running",
    "running",
    "start",
]

START_TIMEOUT_SECONDS: Final = 60.0  # recovery after a crash replays the log first
SILENCE_SECONDS: Final = 6.0  # of a server that is ready as it says
STOP_TIMEOUT_SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.02
SETTINGS: Final = {
    "listen_addresses": "",  # the socket only
    "unix_socket_permissions": "0700",
    "max_connections": "400",  # 64 workers with their pools, the admin UI and commands
    "shared_buffers": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class DirectoryInUse(EmbeddedPostgresError):
    """Another process owns the server of this data directory."""


class EmbeddedPostgres:
    """A running server. Whoever holds this object must call `stop`."""

    def __init__(
        self, directory: PostgresDirectory, server: "subprocess.Popen[bytes]", owner: IO[bytes]
    ) -> None:
        self._directory = directory
        self._server = server
        self._owner = owner
        self.url = _url(directory)

    @property
    def pid(self) -> int:
        """Of the server's first process."""
        return self._server.pid

    def has_died(self) -> bool:
        """Whether the server ended without being told to."""
        return self._server.poll() is not None

    def stop(self) -> None:
        """Closes open connections, writes everything out and waits for the end. May be called twice."""
        if self._owner.closed:  # the directory may be another server's by now
            return
        try:
            _end(self._server)
            self._directory.remove_socket_directory()
        finally:
            self._owner.close()


def start(data_dir: Path, *, lock_timeout_seconds: float = 10.0) -> EmbeddedPostgres:
    """Starts the server of `data_dir`, made if there is none, taken over if a killed owner left it.

    Waits `lock_timeout_seconds` for another owner to finish, then raises EmbeddedPostgresError.
    """
    owner = _lock_owner(data_dir, lock_timeout_seconds)
    try:
        directory = prepare(data_dir)
        _end_orphan(directory)
        return EmbeddedPostgres(directory, _launch(directory), owner)
    except BaseException:
        owner.close()
        raise


def find_running(data_dir: Path) -> str | None:
    """The URL of the server that runs on `data_dir`, if one accepts connections."""
    directory = _ready_directory(data_dir)
    if directory is None or not _accepts_connections(directory):
        return None
    return _url(directory)


@contextmanager
def running(data_dir: Path) -> Iterator[str]:
    """The URL of a server on `data_dir`: the one that runs, left alone, or one of our own until the end."""
    with _open_lock(data_dir, "postgres.users") as users:
        found = _find_or_start(data_dir, users)
        if isinstance(found, str):
            yield found
            return
        try:
            yield found.url
        finally:
            fcntl.flock(users, fcntl.LOCK_EX)  # whoever else uses it meanwhile may finish
            found.stop()


def _find_or_start(data_dir: Path, users: IO[bytes]) -> str | EmbeddedPostgres:
    """With the users' lock held when found. A server that another process is just starting is waited for."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    silent_since: float | None = None
    while True:
        fcntl.flock(users, fcntl.LOCK_SH)
        url = find_running(data_dir)
        if url is not None:
            return url
        fcntl.flock(users, fcntl.LOCK_UN)
        try:
            return start(data_dir, lock_timeout_seconds=POLL_SECONDS)
        except DirectoryInUse:
            now = time.monotonic()
            silent_since = None if _ready_directory(data_dir) is None else silent_since or now
            if silent_since is not None and now > silent_since + SILENCE_SECONDS:
                raise EmbeddedPostgresError(f"The database in {data_dir} does not answer.") from None
            if now > deadline:
                raise


def _ready_directory(data_dir: Path) -> PostgresDirectory | None:
    """Of a server that says of itself that it accepts connections."""
    if not (data_dir / "postgres" / "PG_VERSION").exists():
        return None
    directory = existing(data_dir)
    return directory if _is_ready(directory) else None


def _url(directory: PostgresDirectory) -> str:
    # Not SQLAlchemy's own rendering: it writes a space as "+", which libpq takes for a plus sign.
    host = quote(str(directory.socket_directory), safe="/")
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={host}"


def _lock_owner(data_dir: Path, timeout_seconds: float) -> IO[bytes]:
    owner = _open_lock(data_dir, "postgres.owner")

    def try_lock() -> bool:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    if not _wait(try_lock, timeout_seconds):
        owner.close()
        raise DirectoryInUse(f"Another Sluice runs on {data_dir}; stop it or choose another --data-dir.")
    return owner


def _open_lock(data_dir: Path, name: str) -> IO[bytes]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        return (data_dir / name).open("ab")
    except OSError as error:
        raise EmbeddedPostgresError(
            f"The data directory {data_dir} cannot be used: {error.strerror}."
        ) from error


def _end_orphan(directory: PostgresDirectory) -> None:
    """Holding the owner's lock, we know that a server still running has lost its owner."""
    try:
        if _has_process(directory):
            directory.run("pg_ctl", "stop", "-D", str(directory.path), "-m", "fast", "-w", "-t", "60")
    except EmbeddedPostgresError:  # it may be ending by itself, too far gone to be told
        if not _wait(lambda: not _has_process(directory), STOP_TIMEOUT_SECONDS):
            raise
    # After a restart of the machine its pid may be another program's, and Postgres would refuse to start.
    directory.pid_file.unlink(missing_ok=True)


def _has_process(directory: PostgresDirectory) -> bool:
    """A server works in its own directory. Where there is no /proc, whoever answers on the socket is it."""
    try:
        pid = int(directory.pid_file.read_text().split("\n", 1)[0])
        return os.readlink(f"/proc/{pid}/cwd") == str(directory.path)
    except (OSError, ValueError):
        return _accepts_connections(directory)


def _accepts_connections(directory: PostgresDirectory) -> bool:
    try:
        psycopg.connect(_url(directory), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _launch(directory: PostgresDirectory) -> "subprocess.Popen[bytes]":
    log_path = directory.path.with_name("postgres.log")
    settings = SETTINGS | {"unix_socket_directories": str(directory.socket_directory)}
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            [
                *_ends_with_its_starter(),
                directory.binaries / "postgres",
                "-D",
                directory.path,
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            cwd=directory.path,
            env=environment(),
            user=directory.account.uid if directory.account else None,
            group=directory.account.gid if directory.account else None,
            extra_groups=[] if directory.account else None,
            start_new_session=True,  # Ctrl-C is for us; we stop it when nobody needs it any more
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    _wait(lambda: server.poll() is not None or _is_ready(directory), START_TIMEOUT_SECONDS)
    if server.poll() is None and _is_ready(directory):
        return server
    _end(server)
    raise EmbeddedPostgresError(f"Postgres did not start: {_last_line(log_path)} (see {log_path})")


def _ends_with_its_starter() -> list[str]:
    """Has Linux shut the server down when the thread that starts it is gone, killed with its process too.

    Elsewhere a server whose owner was killed runs on until the next start takes it over.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "INT"]


def _end(server: "subprocess.Popen[bytes]") -> None:
    """Fast shutdown; if that hangs, the immediate one; if even that hangs, the end of the whole session."""
    for ask in (signal.SIGINT, signal.SIGQUIT):
        if server.poll() is not None:
            return
        server.send_signal(ask)
        try:
            server.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _is_ready(directory: PostgresDirectory) -> bool:
    """The eighth line of the pid file says how far the server is."""
    try:
        lines = directory.pid_file.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[7].strip() == "ready"


def _last_line(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").strip().splitlines()
    fatal = [line for line in lines if "FATAL" in line]
    return (fatal or lines or ["it said nothing"])[-1]


def _wait(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
