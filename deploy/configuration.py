"""Where settings come from: options of the command line become the environment that all processes read."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from deploy.data_directory import SECRET_NAMES, DataDirectory
from deploy.failure import Failure
from gateway.setting_sources import CONFIG_VARIABLE

KNOWN_SETTINGS = {
    "admin",
    "data_dir",
    "database_url",
    "engine",
    "files",
    "gateway",
    "scheduler",
    "secrets",
    "slo",
}
DEFAULT_DATA_DIR = Path("sluice-data")


def use_config_file(file: Path | None) -> None:
    """Makes `file` the settings file of this process and its children; raises Failure."""
    if file is None:
        return
    if not os.access(file, os.R_OK) or not file.is_file():
        raise Failure(f"--config {file}: there is no file that can be read")
    os.environ[CONFIG_VARIABLE] = str(file.resolve())
    unknown = set(_settings_file()) - KNOWN_SETTINGS
    if unknown:
        raise Failure(
            f"--config {file}: unknown {min(unknown)}; known are {', '.join(sorted(KNOWN_SETTINGS))}"
        )


def set_options(options: Mapping[str, object | None]) -> None:
    """Gives settings, named `section.key`, the values of options that were used (not None)."""
    for key, value in options.items():
        if value is not None:
            os.environ[variable(key)] = value if isinstance(value, str) else json.dumps(value)


def set_defaults(values: Mapping[str, str]) -> None:
    """Gives settings, named `section.key`, values that neither the environment nor the file gives."""
    given = _settings_file()
    for key, value in values.items():
        section, _, name = key.partition(".")
        if variable(key) not in os.environ and name not in given.get(section, {}):
            set_options({key: value})


def variable(key: str) -> str:
    """The environment variable of a setting: `gateway.port` is SLUICE_GATEWAY__PORT."""
    return "SLUICE_" + key.replace(".", "__").upper()


def use_secrets_of(directory: DataDirectory) -> None:
    """Takes the installation's own secrets for those that neither the environment nor the file gives."""
    in_file = _settings_file().get("secrets", {})
    missing = [
        name for name in SECRET_NAMES if name not in in_file and variable(f"secrets.{name}") not in os.environ
    ]
    if missing:
        kept = directory.secrets()
        set_options({f"secrets.{name}": kept[name] for name in missing})


def key_pepper() -> bytes:
    """The pepper that keys are hashed with; raises Failure where it is not configured."""
    value = os.environ.get(variable("secrets.key_pepper")) or _settings_file().get("secrets", {}).get(
        "key_pepper"
    )
    if not value:
        raise Failure(f"set {variable('secrets.key_pepper')}: keys cannot be made or checked without it")
    try:
        return bytes.fromhex(value)
    except ValueError as error:
        raise Failure(
            f"{variable('secrets.key_pepper')} must be hexadecimal digits, as `openssl rand -hex 32` prints"
        ) from error


def _settings_file() -> dict[str, dict[str, str]]:
    file = os.environ.get(CONFIG_VARIABLE)
    if file is None:
        return {}
    try:
        return tomllib.loads(Path(file).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Failure(f"{file} cannot be read: {error}") from error
