"""Has batches validated: three at a time in each gateway process, each by a process of its own.

Two of them at most are of one tenant: so a large one does not hold up all its small ones, and whatever
one tenant orders, somebody else's need not wait for it. A batch whose validator breaks is given to
another, a few times. One whose gateway dies is taken by another gateway, as its life is over.
"""

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gateway import batch_intake
from gateway.batch_intake import Claimed, Ticket
from gateway.batch_validation import Rules
from gateway.batch_validator import AWAY, DATABASE_URL, DONE, Job, OfferedModel, framed
from gateway.batches.faults import Fault
from gateway.batches.ids import BatchId
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.logs import Trouble
from gateway.requests.catalogue import Catalogue, ServedModel
from gateway.rhythm import Rhythm
from gateway.settings import GatewaySettings
from gateway.tenants.ids import TenantId

POLL_SECONDS: Final = 0.5
MOST_ATTEMPTS: Final = 3
MOST_AT_ONCE: Final = 3
MOST_OF_A_TENANT: Final = 2
AWAY_SECONDS: Final = 5.0  # before a batch whose file could not be read is tried again
_ONE_CORE: Final = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

logger = logging.getLogger(__name__)


class BatchValidators:
    """One per gateway process. `epoch` gives the number of its life, once that has begun."""

    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        settings: GatewaySettings,
        *,
        epoch: Callable[[], int],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._database = database
        self._catalogue = catalogue
        self._settings = settings
        self._epoch = epoch
        self._poll_seconds = poll_seconds
        self._broken: Counter[BatchId] = Counter()
        self._in_hand: dict[BatchId, TenantId] = {}
        self._claiming = asyncio.Lock()
        self._rhythm = Rhythm()
        self._running: list[asyncio.Task[None]] = []
        self._trouble = Trouble(logger, "batches are not validated")

    async def start(self) -> None:
        """Begins to look for batches."""
        self._running = [
            asyncio.create_task(self._run(), name=f"batch validator {number}")
            for number in range(MOST_AT_ONCE)
        ]

    async def stop(self) -> None:
        """Ends what is being validated; others begin it anew."""
        self._rhythm.stop()
        if self._running:
            await asyncio.wait(self._running)

    async def _run(self) -> None:
        async for _ in self._rhythm.turns(self._poll_seconds):
            try:
                while not self._rhythm.is_over and await self._validate_one():
                    pass
            except Exception as error:  # the next turn tries again
                self._trouble.note(error, is_foreseeable=isinstance(error, StoreUnavailable))
            else:
                self._trouble.end()

    async def _validate_one(self) -> bool:
        """Whether there was a batch, and it has been dealt with."""
        if not self._catalogue.models(allowed=None):
            return False  # before an engine was met, no model is known
        claimed = await self._claim()
        if claimed is None:
            return False
        try:
            return await self._deal_with(claimed)
        finally:
            del self._in_hand[claimed.ticket.batch]

    async def _claim(self) -> Claimed | None:
        """One that is not in hand yet, and is from now on."""
        async with self._claiming:
            claimed = await batch_intake.claim(
                self._database,
                epoch=self._epoch(),
                in_hand=self._in_hand,
                passed_over=self._with_their_share(),
            )
            if claimed is not None:
                self._in_hand[claimed.ticket.batch] = claimed.ticket.tenant
        return claimed

    def _with_their_share(self) -> list[TenantId]:
        """Tenants of which as many are in hand as may be."""
        num_in_hand = Counter(self._in_hand.values())
        return [tenant for tenant, num in num_in_hand.items() if num >= MOST_OF_A_TENANT]

    async def _deal_with(self, claimed: Claimed) -> bool:
        """Whether it is done with."""
        ticket = claimed.ticket
        status = await self._run_validator(self._job(claimed), ticket)
        if status in (None, DONE):
            self._broken.pop(ticket.batch, None)
            return True
        if status == AWAY:
            await self._rhythm.pause(AWAY_SECONDS)
        else:
            await self._note_broken(ticket, status)
        return False

    async def _note_broken(self, ticket: Ticket, status: int | None) -> None:
        self._broken[ticket.batch] += 1
        logger.error("the validator of %s broke with status %s", ticket.batch, status)
        if self._broken[ticket.batch] >= MOST_ATTEMPTS:
            message = "The server had an error while it read the input file. Please try again."
            await batch_intake.refuse(self._database, ticket, [Fault("server_error", None, message)])
            del self._broken[ticket.batch]

    async def _run_validator(self, job: Job, ticket: Ticket) -> int | None:
        """Its exit status; None where it was ended because nobody waits for it any more."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway.batch_validator",
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, **_ONE_CORE, DATABASE_URL: self._settings.database_url},
        )
        try:
            assert process.stdin is not None
            with suppress(ConnectionError):  # it broke already: its status says so
                process.stdin.write(framed(job))
                await process.stdin.drain()
            ended = asyncio.create_task(process.wait())
            while not (await asyncio.wait({ended}, timeout=self._poll_seconds))[0]:
                if self._rhythm.is_over or not await batch_intake.is_awaited(self._database, ticket):
                    return None
            return ended.result()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _job(self, claimed: Claimed) -> Job:
        return Job(
            ticket=claimed.ticket,
            rules=Rules(
                endpoint=claimed.endpoint,
                max_lines=self._settings.files.max_lines,
                max_line_bytes=self._settings.gateway.max_body_bytes,
            ),
            blob=claimed.blob,
            models=[_offered(model) for model in self._catalogue.models(allowed=claimed.models)],
            files=self._settings.files.model_dump(mode="json"),
        )


def _offered(model: ServedModel) -> OfferedModel:
    return OfferedModel(
        name=model.name,
        created=model.created,
        text=model.text.source,
        vocab_size=model.vocab_size,
        limits=model.limits,
    )
