"""Sockets to listen on: bound here, or inherited from a supervisor that keeps them over restarts."""

import ipaddress
import os
import socket
from typing import Final

LISTENER_VARIABLE: Final = "SLUICE_LISTENER"  # where a supervisor tells a child which socket it inherits
LOOPBACK: Final = "127.0.0.1"


class AddressUnavailable(Exception):
    """Nothing can listen there; the message is one line that says why."""


def bind(host: str, port: int, *, option: str) -> socket.socket:
    """A listening socket on `host:port` (port 0: any free one); `option` is what the user would change."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.create_server((host, port), family=family, backlog=2048)
        # Opened again, it knows that it speaks TCP; asyncio leaves Nagle's delay on where it does not.
        return socket.socket(fileno=bound.detach())
    except (OSError, OverflowError) as error:
        # Not its own text: create_server adds what it was doing.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise AddressUnavailable(
            f"cannot listen on {host}:{port}: {reason.lower()}; choose another with {option}"
        ) from error


def open_listener(address: str, *, option: str) -> socket.socket:
    """The socket that `address` names: "host:port", or "fd:N" for one inherited from a supervisor."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise AddressUnavailable(f"'{address}' is no address; write host:port in {option}")
    if host == "fd":
        return socket.socket(fileno=int(port))
    return bind(host.strip("[]"), int(port), option=option)


def own_listener(host: str, port: int, *, option: str) -> socket.socket:
    """The socket that this process's supervisor passed on, or without one `host:port`."""
    inherited = os.environ.get(LISTENER_VARIABLE)
    return (
        open_listener(inherited, option=LISTENER_VARIABLE) if inherited else bind(host, port, option=option)
    )


def local_url(listener: socket.socket, *, scheme: str = "http") -> str:
    """Where a listener can be reached from this machine."""
    bound = ipaddress.ip_address(listener.getsockname()[0])
    if bound.is_unspecified:  # every address of this machine, so loopback too
        bound = ipaddress.ip_address(LOOPBACK if bound.version == 4 else "::1")
    host = f"[{bound}]" if bound.version == 6 else str(bound)
    return f"{scheme}://{host}:{port_of(listener)}"


def port_of(listener: socket.socket) -> int:
    """The port that a bound socket got."""
    return int(listener.getsockname()[1])
