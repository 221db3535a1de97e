"""A port that nobody listens on just now."""

import socket


def free_port() -> int:
    """Of this machine's loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
