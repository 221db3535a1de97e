"""Rules for operators, at chosen moments."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.operators.policy import (
    PAIR_ALLOWANCE,
    Attempts,
    NameRefused,
    PasswordRefused,
    after_attempt,
    check_name,
    check_password,
    is_session_live,
    wait_before_attempt_seconds,
)
from gateway.operators.throttle import LoginThrottle

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_name_is_kept_in_lower_case_without_spaces_around_it() -> None:
    assert check_name("  Ada.Lovelace ") == "ada.lovelace"


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "<script>", "-ada", "x" * 65, "a\0b", "ada\n"[:-1] + "\u200b"]
)
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(NameRefused):
        check_name(name)


def test_a_password_of_eleven_characters_is_refused_in_one_line() -> None:
    with pytest.raises(PasswordRefused) as refused:
        check_password("x" * 11)
    assert str(refused.value) == "Use at least 12 characters for the password."


def test_a_password_of_twelve_characters_is_accepted() -> None:
    check_password("x" * 12)


@pytest.mark.parametrize(
    ("idle", "age", "is_live"),
    [
        (timedelta(hours=7, minutes=59), timedelta(hours=8), True),
        (timedelta(hours=8), timedelta(hours=8), False),
        (timedelta(0), timedelta(days=6, hours=23), True),
        (timedelta(0), timedelta(days=7), False),
    ],
)
def test_a_session_ends_when_idle_and_when_old(idle: timedelta, age: timedelta, is_live: bool) -> None:
    expires_at = NOW - age + timedelta(days=7)
    assert is_session_live(now=NOW, last_seen_at=NOW - idle, expires_at=expires_at) is is_live


def test_the_first_attempts_are_free() -> None:
    attempts = Attempts(num_failed=PAIR_ALLOWANCE.num_free - 1, newest_at=10.0)
    assert wait_before_attempt_seconds(attempts, PAIR_ALLOWANCE, now=10.0) == 0.0


def test_the_wait_doubles_up_to_a_longest() -> None:
    waits = [
        wait_before_attempt_seconds(
            Attempts(num_failed=PAIR_ALLOWANCE.num_free + more, newest_at=0.0), PAIR_ALLOWANCE, now=0.0
        )
        for more in (0, 1, 2, 50)
    ]
    assert waits == [2.0, 4.0, 8.0, PAIR_ALLOWANCE.longest_wait_seconds]


def test_attempts_of_an_hour_ago_do_not_count() -> None:
    assert after_attempt(Attempts(num_failed=40, newest_at=0.0), now=3600.0).num_failed == 1


def test_attempts_count_before_their_passwords_are_checked() -> None:
    throttle = LoginThrottle(Clock())
    waits = [throttle.begin(account="ada", address="10.0.0.1") for _ in range(6)]
    assert waits == [0.0] * 5 + [2.0]


def test_an_attempt_that_had_to_wait_does_not_prolong_the_wait() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(8):
        throttle.begin(account="ada", address="10.0.0.1")
    clock.now += 2.0
    assert throttle.begin(account="ada", address="10.0.0.1") == 0.0


def test_the_owner_at_another_address_is_not_locked_out() -> None:
    throttle = LoginThrottle(Clock())
    for _ in range(20):
        throttle.begin(account="ada", address="10.6.6.6")
    assert throttle.begin(account="ada", address="10.0.0.1") == 0.0


def test_many_accounts_from_one_address_are_slowed_down() -> None:
    throttle = LoginThrottle(Clock())
    waits = [throttle.begin(account=f"name-{number}", address="10.6.6.6") for number in range(31)]
    assert waits[-1] > 0.0


def test_success_forgets_the_account_s_failures() -> None:
    throttle = LoginThrottle(Clock())
    for _ in range(5):
        throttle.begin(account="ada", address="10.0.0.1")
    throttle.succeed(account="ada", address="10.0.0.1")
    assert throttle.begin(account="ada", address="10.0.0.1") == 0.0
