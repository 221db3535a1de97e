"""A process that validates one batch, so that no request waits for it: `python -m gateway.batch_validator`.

    stdin   the job; when it ends, whoever wants this done is gone, and so is this process
    exit    DONE: what came of it is in the store    AWAY: the store or the files are away    else: it broke

No row and no line of the file passes through the gateway.
"""

import asyncio
import logging
import os
import sys
import threading
from functools import cache
from tempfile import TemporaryFile
from typing import Any, Final

import msgspec

from engine.protocol import EngineLimits
from gateway import batch_intake
from gateway.batch_intake import Ticket, Validated
from gateway.batch_validation import FindModel, Rules, Validation
from gateway.batches.faults import Fault
from gateway.batches.item_spool import ItemSpool
from gateway.db import Database
from gateway.errors import FileStoreUnavailable, NotFound, StoreUnavailable
from gateway.files.places import file_store
from gateway.files.store import BlobMissing
from gateway.logs import configure_logging
from gateway.requests.catalogue import ServedModel
from gateway.settings import FilesSection
from gateway.text.text_model import TextSource, build_text_model

DONE: Final = 0
AWAY: Final = 75  # "temporary failure", as sysexits.h has it
DATABASE_URL: Final = "SLUICE_DATABASE_URL"
NICENESS: Final = 10
STATEMENT_TIMEOUT_MS: Final = 120_000  # nobody waits for it
LENGTH_BYTES: Final = 8

logger = logging.getLogger(__name__)


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the batch may ask, as `ServedModel` has it, but with its text yet to be read."""

    name: str
    created: int
    text: TextSource
    vocab_size: int
    limits: EngineLimits


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that a validator is told. `files` are the settings of the file store, where `blob` lies."""

    ticket: Ticket
    rules: Rules
    blob: str
    models: list[OfferedModel]
    files: dict[str, Any]


def framed(job: Job) -> bytes:
    """A job as it is written to a validator."""
    message = msgspec.msgpack.encode(job)
    return len(message).to_bytes(LENGTH_BYTES) + message


def main() -> int:
    """Does the job on stdin; the exit status."""
    configure_logging(sys.stderr)
    os.nice(NICENESS)
    job = msgspec.msgpack.decode(_read(int.from_bytes(_read(LENGTH_BYTES))), type=Job)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        asyncio.run(_validate(job))
    except (FileStoreUnavailable, StoreUnavailable) as error:
        logger.warning("%s cannot be validated now: %s", job.ticket.batch, error)
        return AWAY
    return DONE


async def _validate(job: Job) -> None:
    database = Database.connect(
        os.environ[DATABASE_URL],
        application_name="sluice batch validator",
        pool_size=1,
        statement_timeout_ms=STATEMENT_TIMEOUT_MS,
    )
    validation = Validation(job.rules, _finder(job.models))
    try:
        with TemporaryFile() as file:
            spool = ItemSpool(file)
            _pass_over(job, validation, spool)
            if validation.faults.num > 0:
                await batch_intake.refuse(database, job.ticket, validation.faults.listed())
            else:
                await batch_intake.take_in(database, job.ticket, _result(validation), spool.chunks())
    finally:
        await database.close()


def _pass_over(job: Job, validation: Validation, spool: ItemSpool) -> None:
    try:
        with file_store(FilesSection.model_validate(job.files)).open(job.blob) as source:
            for items in validation.items(source):
                if validation.faults.num == 0:
                    spool.add(items)
    except BlobMissing:
        validation.faults.add(
            Fault("file_not_found", None, "The input file's content is gone.", "input_file_id")
        )


def _result(validation: Validation) -> Validated:
    assert validation.model is not None, "there is no item without"
    return Validated(
        model=validation.model.name, num_items=validation.num_items, num_tokens=validation.num_tokens
    )


def _finder(offered: list[OfferedModel]) -> FindModel:
    """Reads a model's text when it is first asked for: that takes time, and most batches ask one model."""
    by_name = {model.name: model for model in offered}

    @cache
    def find(name: str) -> ServedModel:
        if name not in by_name:
            raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
        model = by_name[name]
        return ServedModel(
            name=name,
            created=model.created,
            text=build_text_model(model.text),
            vocab_size=model.vocab_size,
            limits=model.limits,
        )

    return find


def _read(num_bytes: int) -> bytes:
    """From stdin itself: a thread that waits in its buffer would break the end of this process."""
    parts: list[bytes] = []
    while num_bytes > 0:
        part = os.read(sys.stdin.fileno(), min(num_bytes, 1 << 20))
        if not part:
            raise EOFError("the job is cut short")
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
