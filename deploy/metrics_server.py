"""The gateway's /metrics on an internal port: the counters of all workers, summed."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry, multiprocess, start_http_server

from deploy.listener import AddressUnavailable

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # the library's: workers write their counters there


class MetricsServer:
    """Serves what workers write. One per gateway, in the process that starts the workers."""

    def __init__(self, *, host: str, port: int) -> None:
        """Listens at once; raises AddressUnavailable. The counters live as long as this object."""
        self._files = TemporaryDirectory(prefix="sluice-metrics-", ignore_cleanup_errors=True)
        directory = Path(self._files.name)
        self._directory = directory
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, path=str(directory))  # type: ignore[no-untyped-call]
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise AddressUnavailable(
                f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another with --metrics-port"
            ) from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    @property
    def environment(self) -> dict[str, str]:
        """What a worker needs to be counted."""
        return {DIRECTORY_VARIABLE: str(self._directory)}

    def forget(self) -> Callable[[int], None]:
        """A function that drops a dead worker's gauges; its counters stay in the sums."""

        def forget_worker(pid: int) -> None:
            multiprocess.mark_process_dead(pid, path=str(self._directory))  # type: ignore[no-untyped-call]

        return forget_worker

    def stop(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._files.cleanup()
