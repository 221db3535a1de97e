"""Saves a download: it has its name once it is whole, and whatever breaks off leaves nothing behind."""

import os
import sys
from pathlib import Path
from typing import Final

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
    """Fetches a file to its place. Raises Failure."""
    if place == STANDARD_OUTPUT:
        await _print(server, file_id)
        return
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    try:
        await _write(server, file_id, part, label=place.name)
        part.replace(place)
    except OSError as error:
        raise Failure(f"{place} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


async def _write(server: Server, file_id: str, part: Path, *, label: str) -> None:
    with part.open("wb") as out:  # of the length that was announced, or the client raises
        async with server.content(file_id) as content:
            with bytes_bar(label, content.num_bytes) as tell:
                async for piece in content.pieces():
                    out.write(piece)
                    tell(len(piece))
        out.flush()
        os.fsync(out.fileno())


async def _print(server: Server, file_id: str) -> None:
    async with server.content(file_id) as content:
        async for piece in content.pieces():
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
