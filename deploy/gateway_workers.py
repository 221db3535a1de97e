"""The gateway's workers as children of a supervisor: N processes that share one listening socket."""

import socket
from contextlib import AsyncExitStack

from deploy.listener import LISTENER_VARIABLE, LOOPBACK, local_url
from deploy.metrics_server import MetricsServer
from deploy.probe import is_up
from deploy.progress import Progress
from deploy.supervisor import ChildSpec, Supervisor, python
from gateway.settings import GatewaySettings

EXTRA_STOP_SECONDS = 25.0  # after the last answer: what its settlements may take when the store is slow


def worker_specs(
    *, num_workers: int, listener: socket.socket, metrics: MetricsServer, drain_seconds: float
) -> list[ChildSpec]:
    """One child for each worker; the socket stays with the supervisor, so a restart loses no connection."""
    return [
        ChildSpec(
            name=f"gateway-{number}",
            command=python("deploy.gateway_process"),
            environment={LISTENER_VARIABLE: f"fd:{listener.fileno()}", **metrics.environment},
            file_descriptors=(listener.fileno(),),
            stops_with="gateway",
            stop_seconds=drain_seconds + EXTRA_STOP_SECONDS,
            on_end=metrics.forget(),
        )
        for number in range(1, num_workers + 1)
    ]


async def start_gateway(
    settings: GatewaySettings,
    listener: socket.socket,
    supervisor: Supervisor,
    *,
    num_workers: int,
    metrics_port: int,
    progress: Progress,
    at_exit: AsyncExitStack,
) -> str:
    """Starts a gateway of its own; returns what to tell the person at the terminal."""
    metrics = MetricsServer(host=LOOPBACK, port=metrics_port)
    at_exit.callback(metrics.stop)
    at_exit.push_async_callback(supervisor.stop)
    at_exit.callback(listener.close)  # first: who connects while the workers drain is refused at once
    url = local_url(listener)
    specs = worker_specs(
        num_workers=num_workers,
        listener=listener,
        metrics=metrics,
        drain_seconds=settings.gateway.drain_seconds,
    )
    for spec in specs:
        with progress.step(spec.name):
            child = await supervisor.start(spec)
            await child.until_ready(lambda: is_up(f"{url}/healthz"))
    return (
        f"Gateway at {url}/v1, metrics at {metrics.url}, logs in {supervisor.log_directory}. Ctrl-C stops it."
    )
