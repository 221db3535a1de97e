"""What `sluice serve` keeps between two starts: secrets, the first key, models, logs and Postgres' files."""

import os
import secrets
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SECRET_NAMES = ("key_pepper", "cache_namespace", "engine_shared")


class DataDirectoryError(Exception):
    """The data directory cannot be used; the message is one line that says why."""


@dataclass(frozen=True)
class DataDirectory:
    """A directory and the places in it."""

    path: Path

    @property
    def models(self) -> Path:
        """Converted models."""
        return self.path / "models"

    @property
    def logs(self) -> Path:
        """One file per child process."""
        return self.path / "logs"

    @property
    def journal(self) -> Path:
        """What gateway workers have served and the store does not have yet."""
        return self.path / "journal"

    @property
    def files(self) -> Path:
        """Files of tenants, where no other place is set."""
        return self.path / "files"

    @property
    def admin_url(self) -> Path:
        """Where the admin UI was last served."""
        return self.path / "admin-url"

    @property
    def first_key(self) -> Path:
        """The first API key, readable by its owner alone."""
        return self.path / "first-key"

    def create(self) -> None:
        """Makes the directory if it is not there; raises DataDirectoryError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)  # so that one we may not write to is found at once
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.path} as data directory: {error.strerror}") from error

    def secrets(self) -> dict[str, str]:
        """The secrets of this installation, made on the first call and kept with mode 0600.

        Raises DataDirectoryError.
        """
        file = self.path / "secrets.toml"
        try:
            if not file.exists():
                self._refuse_new_secrets_for_old_keys(file)
                lines = [f'{name} = "{secrets.token_hex(32)}"' for name in SECRET_NAMES]
                _keep_first(file, "\n".join(["[secrets]", *lines, ""]))
            kept = tomllib.loads(file.read_text())["secrets"]
            return {name: kept[name] for name in SECRET_NAMES}
        except OSError as error:
            raise DataDirectoryError(f"cannot read or make {file}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, KeyError) as error:
            raise DataDirectoryError(f"{file} is damaged ({error}); restore it from a backup") from error

    def _refuse_new_secrets_for_old_keys(self, file: Path) -> None:
        if (self.path / "first-key").exists():
            raise DataDirectoryError(f"{file} is gone, and no key works without it; restore it from a backup")


def write_private(file: Path, text: str) -> None:
    """Writes a file that only its owner may read, whole or not at all."""
    _write_part(file, text).rename(file)


def _keep_first(file: Path, text: str) -> None:
    """As `write_private`, but of several processes that write at once the first one's file stays."""
    part = _write_part(file, text)
    with suppress(FileExistsError):
        file.hardlink_to(part)
    part.unlink()


def _write_part(file: Path, text: str) -> Path:
    part = file.with_name(f"{file.name}.part-{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    return part
