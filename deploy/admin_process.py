"""The admin UI's process: `python -m deploy.admin_process`. Settings: environment and file."""

import asyncio
import sys

from admin_ui.server import serve
from admin_ui.settings import load_settings
from deploy import lifeline
from deploy.failure import fail
from deploy.listener import AddressUnavailable, own_listener
from gateway.logs import configure_logging
from gateway.setting_sources import ConfigurationError


def main() -> None:
    """Serves the pages until it is told to stop."""
    lifeline.hold()
    configure_logging(sys.stderr)
    try:
        settings = load_settings()
        listener = own_listener(settings.admin.host, settings.admin.port, option="--admin-port")
        asyncio.run(serve(settings, sockets=[listener]))
    except (ConfigurationError, AddressUnavailable) as error:
        fail(error)


if __name__ == "__main__":
    main()
