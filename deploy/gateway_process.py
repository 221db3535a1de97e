"""One gateway worker's process: `python -m deploy.gateway_process`. Settings: environment and file."""

import gc
import socket
import sys
from typing import Final

import uvicorn

from deploy import lifeline
from deploy.failure import fail
from deploy.listener import AddressUnavailable, own_listener
from gateway.app import Gateway, create_app
from gateway.logs import configure_logging
from gateway.setting_sources import ConfigurationError
from gateway.settings import load_settings

INTERRUPT_SECONDS: Final = 2  # for the last words to those who were still waiting when the drain time ended
YOUNG_OBJECTS: Final = (
    20_000  # a few dozen requests' worth: nearly all are gone by then without being looked for
)


class GatewayServer(uvicorn.Server):
    """An HTTP server that drains: unready at once, running answers finish until the drain time ends."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, once the gateway knows."""
        self._gateway.begin_shutdown()
        await super().shutdown(sockets)


def main() -> None:
    """Serves the API until it is told to stop."""
    lifeline.hold()
    configure_logging(sys.stderr)
    try:
        settings = load_settings()
        listener = own_listener(settings.gateway.host, settings.gateway.port, option="--port")
    except (ConfigurationError, AddressUnavailable) as error:
        fail(error)
    app = create_app(settings)
    _collect_seldom()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.gateway.drain_seconds) + INTERRUPT_SECONDS,
    )
    GatewayServer(config, app.framework.state.gateway).run(sockets=[listener])


def _collect_seldom() -> None:
    """The garbage collector took a seventh of a busy worker's time, to find next to nothing.

    What is loaded by now stays, and requests leave hardly any cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


if __name__ == "__main__":
    main()
