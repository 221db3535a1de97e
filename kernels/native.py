"""Builds the native CPU operators once and loads them. Without a compiler, the references do their work.

One shared library holds all operators, compiled for one level of SIMD. It is kept in the user's cache under a
name made of the sources, the flags and the compiler, so a change of any of them builds anew.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_FOLDER: Final = Path(__file__).parent
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Wno-psabi")
_WIDE_VECTORS: Final = "-mprefer-vector-width=512"
_COMPILE_SECONDS: Final = 300


@dataclass(frozen=True)
class Level:
    """An instruction set that the operators can be compiled for."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """The CPU features, as /proc/cpuinfo names them, without which its code would not run."""


PLAIN: Final = Level("plain", (), frozenset())
LEVELS: Final = (
    Level(
        "avx512_vnni",
        ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", _WIDE_VECTORS),
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma"}),
    ),
    Level("avx2", ("-mavx2", "-mfma", "-mf16c", "-mbmi2"), frozenset({"avx2", "fma", "f16c", "bmi2"})),
    PLAIN,
)
"""The fastest first."""


class NativeUnavailable(Exception):
    """The operators cannot be compiled or loaded here; the message says why in one line."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The operators for this machine's best level, built if need be; None, after a warning, without them."""
    level = usable_levels()[0]
    try:
        return load(level)
    except NativeUnavailable as unavailable:
        logger.warning("native operators are off, so computing is several times slower: %s", unavailable)
        return None


def set_num_threads(count: int) -> None:
    """Computes with `count` threads from now on, the caller's included. Not while an operator runs."""
    native = library()
    if native is not None:
        native.sluice_set_num_threads(ctypes.c_int(count))


def usable_levels() -> list[Level]:
    """The levels that this machine can run, the fastest first; never empty."""
    features = _cpu_features()
    return [level for level in LEVELS if level.needs <= features]


@functools.cache
def load(level: Level) -> ctypes.CDLL:
    """The operators compiled for `level`. Raises NativeUnavailable."""
    path = build(level)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error


def build(level: Level) -> Path:
    """Where the library for `level` lies, compiled now unless it was before. Raises NativeUnavailable."""
    compiler = _compiler()
    path = cache_directory() / f"sluice-{level.name}-{_fingerprint(level, compiler)}.so"
    if not path.exists():
        _compile(level, compiler, path)
    return path


def cache_directory() -> Path:
    """Where compiled libraries are kept: the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sluice" / "kernels"


def _compiler() -> list[str]:
    """The command that compiles C++: what CXX names, or the system's."""
    named = os.environ.get("CXX")
    command = shlex.split(named) if named else ["c++"]
    if shutil.which(command[0]) is None:
        raise NativeUnavailable(
            f"there is no C++ compiler {command[0]!r}; install one (Debian: apt install g++)"
        )
    return command


def _sources() -> list[Path]:
    return sorted([*_FOLDER.glob("include/*.cpp"), *_FOLDER.glob("*/native.cpp")])


def _fingerprint(level: Level, compiler: Sequence[str]) -> str:
    """Sixteen digits that change with whatever the library's content depends on."""
    digest = hashlib.blake2b(digest_size=8)
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False)
    settings = [*compiler, *_FLAGS, *level.flags, platform.machine(), version.stdout.decode(errors="replace")]
    digest.update("\0".join(settings).encode())
    for path in sorted([*_sources(), *_FOLDER.glob("include/*.h"), *_FOLDER.glob("*/native.h")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_FOLDER)} {len(content)}\0".encode() + content)
    return digest.hexdigest()


def _compile(level: Level, compiler: Sequence[str], path: Path) -> None:
    logger.info("compiling the native operators for %s (some ten seconds, once)", level.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: another process may be building, or loading, the same one.
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            folder = Path(name)
            objects = [folder / f"{index}.o" for index in range(len(_sources()))]
            include = [*_FLAGS, *level.flags, "-I", str(_FOLDER / "include"), "-c"]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                commands = [
                    [*compiler, *include, str(source), "-o", str(built)]
                    for source, built in zip(_sources(), objects, strict=True)
                ]
                list(pool.map(_run, commands))
            library = folder / path.name
            _run([*compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
            library.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"compiling failed: {error}") from error


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
    if done.returncode != 0:
        raise NativeUnavailable(f"{command[0]} failed: {_first_error(done.stderr)}")


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "error" in line] or output.splitlines() or ["no message"]
    return lines[0].strip()


def _cpu_features() -> frozenset[str]:
    """What /proc/cpuinfo says the first CPU can do; nothing where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def main() -> None:
    """Builds the operators for this machine ahead of the first start, and says which."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if library() is not None:
        logger.info("native operators: %s", usable_levels()[0].name)


if __name__ == "__main__":
    main()
