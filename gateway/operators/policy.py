"""Rules for operators' names, passwords, sessions and sign-in attempts. Knows no clock, no store and no web.

Every rule is a function of values that are passed in, so that a test can stand at any moment.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

INVITE_LIFETIME: Final = timedelta(hours=24)
SESSION_IDLE_LIFETIME: Final = timedelta(hours=8)
SESSION_LIFETIME: Final = timedelta(days=7)
LAST_SEEN_RESOLUTION: Final = timedelta(minutes=1)  # a page view within it writes nothing

MIN_PASSWORD_LENGTH: Final = 12
MAX_PASSWORD_LENGTH: Final = 256
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9._@+-]{0,62}[a-z0-9])?")


class OperatorError(Exception):
    """What a person typed cannot be used; the message is one sentence for that person."""


class NameRefused(OperatorError):
    """The name is malformed, or another operator has it."""


class PasswordRefused(OperatorError):
    """The password is too short or too long."""


def check_name(name: str) -> str:
    """The name as it is stored; raises NameRefused."""
    folded = name.strip().lower()
    if not _NAME.fullmatch(folded):
        raise NameRefused("Use 1 to 64 letters, digits, dots, dashes, underscores, @ or + for the name.")
    return folded


def check_password(password: str) -> None:
    """Raises PasswordRefused. Length is the only rule: composition rules make passwords worse."""
    if len(password) < MIN_PASSWORD_LENGTH:
        raise PasswordRefused(f"Use at least {MIN_PASSWORD_LENGTH} characters for the password.")
    if len(password) > MAX_PASSWORD_LENGTH:
        raise PasswordRefused(f"Use at most {MAX_PASSWORD_LENGTH} characters for the password.")


def is_session_live(*, now: datetime, last_seen_at: datetime, expires_at: datetime) -> bool:
    """Whether a session may still be used: neither idle for too long nor past its absolute end."""
    return now < expires_at and now - last_seen_at < SESSION_IDLE_LIFETIME


def is_last_seen_stale(*, now: datetime, last_seen_at: datetime) -> bool:
    """Whether a page view should be written down as the session's newest."""
    return now - last_seen_at >= LAST_SEEN_RESOLUTION


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """How many attempts in a row are free, and how the wait grows afterwards."""

    num_free: int
    first_wait_seconds: float
    longest_wait_seconds: float


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """Attempts in a row without success, and the moment (monotonic seconds) of the newest."""

    num_failed: int
    newest_at: float


# A pair of account and address is held tightest. An address alone may serve a whole office, and an account
# alone must not let a stranger lock its owner out: both bend later, and the account's wait stays short.
PAIR_ALLOWANCE: Final = Allowance(num_free=5, first_wait_seconds=2.0, longest_wait_seconds=900.0)
ADDRESS_ALLOWANCE: Final = Allowance(num_free=30, first_wait_seconds=2.0, longest_wait_seconds=900.0)
ACCOUNT_ALLOWANCE: Final = Allowance(num_free=30, first_wait_seconds=1.0, longest_wait_seconds=10.0)

ATTEMPTS_FORGOTTEN_AFTER_SECONDS: Final = 3600.0


def wait_before_attempt_seconds(attempts: Attempts | None, allowance: Allowance, *, now: float) -> float:
    """How long the next attempt has to wait; 0 when it may come now. The wait doubles with every failure."""
    if attempts is None or attempts.num_failed < allowance.num_free:
        return 0.0
    doublings = min(attempts.num_failed - allowance.num_free, 32)
    wait = min(allowance.first_wait_seconds * 2.0**doublings, allowance.longest_wait_seconds)
    return max(0.0, attempts.newest_at + wait - now)


def after_attempt(attempts: Attempts | None, *, now: float) -> Attempts:
    """The state once one more attempt has begun. Long-forgotten attempts do not count."""
    if attempts is None or is_forgotten(attempts, now=now):
        return Attempts(num_failed=1, newest_at=now)
    return Attempts(num_failed=attempts.num_failed + 1, newest_at=now)


def is_forgotten(attempts: Attempts, *, now: float) -> bool:
    """Whether the attempts lie so far back that they count no more."""
    return now - attempts.newest_at >= ATTEMPTS_FORGOTTEN_AFTER_SECONDS
