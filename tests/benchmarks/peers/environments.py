"""A virtual environment for each peer, outside the project's: made once, and anew when its recipe changes."""

import hashlib
import shutil
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.benchmarks.peers.logged import run_logged
from tests.benchmarks.peers.system import PEERS, outside_environment
from tests.benchmarks.scheduler.report import progress

_READY: Final = ".ready"
_QUIET_PIP: Final = {"PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What an environment holds. `unwanted` packages go again once installed; `note` says what to expect.

    `build_settings` decide what a build makes, `build_limits` only how much of the machine it takes.
    """

    name: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    build_settings: Mapping[str, str] = field(default_factory=dict)
    build_limits: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def directory(self) -> Path:
        """Of the virtual environment."""
        return PEERS / self.name

    @property
    def identity(self) -> str:
        """Changes with anything that decides what is installed."""
        facts = (self.requirements, self.unwanted, sorted(self.build_settings.items()), sys.version)
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def binary(self, name: str) -> str:
        """A program of the environment."""
        return str(self.directory / "bin" / name)

    def site_packages(self) -> Path:
        """Where its packages lie."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.directory / "lib" / version / "site-packages"


def prepare(recipe: Recipe, finish: Callable[[Recipe], None] = lambda recipe: None) -> None:
    """Makes the environment unless it is there; `finish` mends what was installed. Raises NotAvailable."""
    ready = recipe.directory / _READY
    if ready.is_file() and ready.read_text() == recipe.identity:
        return
    progress(f"installing {' '.join(recipe.requirements)} into {recipe.directory}{recipe.note}")
    shutil.rmtree(recipe.directory, ignore_errors=True)
    venv.create(recipe.directory, with_pip=True, symlinks=True)
    _pip(recipe, "install", *recipe.requirements)
    if recipe.unwanted:
        _pip(recipe, "uninstall", "--yes", *recipe.unwanted)
    finish(recipe)
    ready.write_text(recipe.identity)


def _pip(recipe: Recipe, verb: str, *arguments: str) -> None:
    run_logged(
        [recipe.binary("python"), "-m", "pip", verb, *arguments],
        what=f"pip {verb} for {recipe.name}",
        log=PEERS / f"{recipe.name}.{verb}.log",
        environment={**recipe.build_limits, **outside_environment(), **_QUIET_PIP, **recipe.build_settings},
    )
