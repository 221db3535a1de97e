"""Saves a download: it has its name once it is whole, and whatever breaks off leaves nothing behind."""

import os
import sys
from pathlib import Path
from typing import BinaryIO, Final

from deploy.batch.bytes_bar import bytes_bar
from deploy.batch.server import Server
from deploy.failure import Failure

STANDARD_OUTPUT: Final = Path("-")


def check_place(file: Path | None) -> None:
    """Before anything is fetched. Raises Failure."""
    if file is None or file == STANDARD_OUTPUT:
        return
    if file.is_dir():
        raise Failure(f"{file} is a folder: name a file")
    if not file.resolve().parent.is_dir():
        raise Failure(f"{file} cannot be written: there is no folder {file.resolve().parent}")


async def save(server: Server, file_id: str, place: Path) -> None:
    """Fetches a file to its place; a pipe or a device is written to, and never replaced. Raises Failure."""
    if place == STANDARD_OUTPUT:
        await _copy(server, file_id, sys.stdout.buffer)
        return
    try:
        if (ordinary := _file_behind(place)) is not None:
            await _save_whole(server, file_id, ordinary)
        else:
            with place.open("wb") as out:
                await _copy(server, file_id, out)
    except OSError as error:
        raise Failure(f"{place} cannot be written: {error.strerror}") from error


def _file_behind(place: Path) -> Path | None:
    """What a link leads to, be it there or not; None: a pipe or a device."""
    return place.resolve() if place.is_file() or not place.exists() else None


async def _save_whole(server: Server, file_id: str, place: Path) -> None:
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    try:
        with part.open("wb") as out:
            await _copy(server, file_id, out, label=place.name)
            os.fsync(out.fileno())
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


async def _copy(server: Server, file_id: str, out: BinaryIO, *, label: str | None = None) -> None:
    """All of it: where less comes than was announced, the client raises. With a label a bar is shown."""
    async with server.content(file_id) as content:
        with bytes_bar(label or "", content.num_bytes, is_hidden=label is None) as tell:
            async for piece in content.pieces():
                out.write(piece)
                tell(len(piece))
    out.flush()
