"""The gateway's workers as children of a supervisor: N processes that share one listening socket."""

import socket

from deploy.metrics_server import MetricsServer
from deploy.supervisor import ChildSpec, python

LISTENER_VARIABLE = "SLUICE_LISTENER"
WORKER_NAME_VARIABLE = "SLUICE_WORKER_NAME"
EXTRA_STOP_SECONDS = 5.0  # to settle and close after the last answer


def worker_specs(
    *, num_workers: int, listener: socket.socket, metrics: MetricsServer, drain_seconds: float
) -> list[ChildSpec]:
    """One child for each worker; the socket stays with the supervisor, so a restart loses no connection."""
    return [
        ChildSpec(
            name=f"gateway-{number}",
            command=python("deploy.gateway_process"),
            environment={
                LISTENER_VARIABLE: f"fd:{listener.fileno()}",
                WORKER_NAME_VARIABLE: f"gateway-{number}",
                **metrics.environment,
            },
            file_descriptors=(listener.fileno(),),
            stop_seconds=drain_seconds + EXTRA_STOP_SECONDS,
            on_end=metrics.forget(),
        )
        for number in range(1, num_workers + 1)
    ]
