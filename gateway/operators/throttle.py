"""Slows down guessing of passwords: remembers attempts of this process. Decides nothing: policy.py does.

One admin process serves all operators, so memory is enough; a restart forgets at most an hour of failures.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gateway.operators.policy import (
    ACCOUNT_ALLOWANCE,
    ADDRESS_ALLOWANCE,
    PAIR_ALLOWANCE,
    Allowance,
    Attempts,
    after_attempt,
    wait_before_attempt_seconds,
)

MAX_REMEMBERED: Final = 20_000  # a flood of invented names pushes the oldest out instead of filling memory

_Scope = tuple[str, ...]


class LoginThrottle:
    """Attempts to sign in per account and address, per address, and per account."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attempts: OrderedDict[_Scope, Attempts] = OrderedDict()

    def begin(self, *, account: str, address: str) -> float:
        """Counts an attempt and returns 0, or counts nothing and returns the seconds to wait.

        The attempt counts before its password is checked: a hundred at once are a hundred, not one.
        """
        now = self._clock()
        scopes = _scopes(account=account, address=address)
        wait = max(
            wait_before_attempt_seconds(self._attempts.get(scope), allowance, now=now)
            for scope, allowance in scopes.items()
        )
        if wait == 0.0:
            for scope in scopes:
                self._remember(scope, after_attempt(self._attempts.get(scope), now=now))
        return wait

    def succeed(self, *, account: str, address: str) -> None:
        """Forgets what was counted against this account at this address, and against the account."""
        for scope in (("pair", account, address), ("account", account)):
            self._attempts.pop(scope, None)

    def _remember(self, scope: _Scope, attempts: Attempts) -> None:
        self._attempts[scope] = attempts
        self._attempts.move_to_end(scope)
        while len(self._attempts) > MAX_REMEMBERED:
            self._attempts.popitem(last=False)


def _scopes(*, account: str, address: str) -> dict[_Scope, Allowance]:
    return {
        ("pair", account, address): PAIR_ALLOWANCE,
        ("address", address): ADDRESS_ALLOWANCE,
        ("account", account): ACCOUNT_ALLOWANCE,
    }
