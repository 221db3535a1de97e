"""One gateway worker's process: `python -m deploy.gateway_process`. Settings: environment and file."""

import gc
import socket
import sys
from typing import Final

import uvicorn

from deploy import lifeline
from deploy.failure import fail
from deploy.garbage import collect_seldom
from deploy.listener import AddressUnavailable, own_listener
from gateway.app import Gateway, create_app
from gateway.logs import configure_logging
from gateway.setting_sources import ConfigurationError
from gateway.settings import load_settings

INTERRUPT_SECONDS: Final = 2  # for the last words to those who were still waiting when the drain time ended


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
    gc.collect()
    collect_seldom()
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.gateway.drain_seconds) + INTERRUPT_SECONDS,
    )
    GatewayServer(config, app.framework.state.gateway).run(sockets=[listener])


if __name__ == "__main__":
    main()
