"""A child's side of its supervisor's pipe: when the supervisor is gone, the child ends too."""

import os
import signal
import threading

from deploy.supervisor import SUPERVISOR_FD_VARIABLE

GRACE_SECONDS = 15.0


def hold() -> None:
    """Ends this process, gently and then for good, once its supervisor has died. No-op without one."""
    descriptor = os.environ.get(SUPERVISOR_FD_VARIABLE)
    if descriptor is not None:
        threading.Thread(target=_wait_for_the_end, args=(int(descriptor),), daemon=True).start()


def _wait_for_the_end(descriptor: int) -> None:
    os.read(descriptor, 1)  # nothing is ever written: it returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_SECONDS)
    os._exit(1)
