"""All of batches that runs by itself in a gateway process, composed: validation, work, and the sweep."""

from collections.abc import Callable
from typing import Final

from gateway.batch_claiming import BatchClaiming
from gateway.batch_item import ItemRunner
from gateway.batch_sweep import BatchSweep
from gateway.batch_validators import BatchValidators
from gateway.batch_worker import BatchWorker
from gateway.db import Database
from gateway.dispatch import Dispatcher
from gateway.engines.directory import EngineDirectory
from gateway.filing import Filing
from gateway.generation import Generation
from gateway.item_ledger import ItemLedger
from gateway.metering import Metering
from gateway.metrics import GatewayMetrics
from gateway.requests.catalogue import Catalogue
from gateway.settings import GatewaySettings

NUM_CONNECTIONS: Final = 4  # of their own, so that no request waits; one holds the lock of who leads


class Batching:
    """One per gateway process. Call `start` once the process's life has begun."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        metering: Metering,
        filing: Filing,
        catalogue: Catalogue,
        directory: EngineDirectory,
        dispatcher: Dispatcher,
        metrics: GatewayMetrics,
    ) -> None:
        self._database = Database.connect(
            settings.database_url, application_name="sluice batches", pool_size=NUM_CONNECTIONS
        )
        epoch = _epoch_of(metering)
        ledger = ItemLedger(metering)
        self._generation = Generation(
            ledger=ledger,
            dispatcher=dispatcher,
            metrics=metrics,
            in_flight=metrics.items_in_flight,
            namespace_secret=bytes.fromhex(settings.secrets.cache_namespace),
        )
        runner = ItemRunner(
            generation=self._generation,
            ledger=ledger,
            metering=metering,
            catalogue=catalogue,
            timeout_seconds=settings.gateway.request_timeout_seconds,
        )
        self._worker = BatchWorker(
            BatchClaiming(self._database, filing.store, epoch=epoch),
            runner,
            directory=directory,
            catalogue=catalogue,
        )
        self._validators = BatchValidators(self._database, catalogue, settings, epoch=epoch)
        self._sweep = BatchSweep(
            self._database,
            filing,
            metrics,
            keep_days=settings.gateway.batch_days,
            keep_files_days=settings.files.keep_days,
        )

    async def start(self) -> None:
        """Begins. The store, the files and the engines may be away."""
        await self._validators.start()
        await self._worker.start()
        await self._sweep.start()

    async def stop(self) -> None:
        """Gives back what is not done; others go on with it."""
        await self._worker.stop()
        await self._generation.settled()
        await self._validators.stop()
        await self._sweep.stop()
        await self._database.close()


def _epoch_of(metering: Metering) -> Callable[[], int]:
    return lambda: metering.epoch
