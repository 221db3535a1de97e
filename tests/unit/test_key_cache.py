"""What is remembered of keys, and what is forgotten."""

import pytest

from gateway.keys import cache as bounds
from gateway.keys.cache import KeyCache, Valid
from tests.fakes.keys import FakeKeys

ENTRY = Valid(caller=FakeKeys.caller, expires_at=None)
KEY = FakeKeys.caller.key


def cache_with(*digests: bytes) -> KeyCache:
    """A cache of one key's secrets."""
    cache = KeyCache()
    for digest in digests:
        cache.add_valid(digest, ENTRY, version=cache.version)
    return cache


def test_both_secrets_of_a_key_are_forgotten_when_it_changes() -> None:
    cache = cache_with(b"old", b"new")
    assert [cache.valid(digest) for digest in (b"old", b"new")] == [ENTRY, ENTRY]
    cache.forget([KEY])
    assert [cache.valid(digest) for digest in (b"old", b"new")] == [None, None]


def test_an_answer_from_before_a_change_is_not_kept() -> None:
    cache = cache_with()
    version = cache.version
    cache.forget([KEY])
    cache.add_valid(b"old", ENTRY, version=version)
    cache.add_refused(b"new", reason="no", now=0.0, version=version)
    assert cache.valid(b"old") is None
    assert cache.refused(b"new", now=0.0) is None


def test_nothing_is_forgotten_when_nothing_has_changed() -> None:
    cache = cache_with(b"digest")
    cache.add_refused(b"junk", reason="no", now=0.0, version=cache.version)
    cache.forget([])
    assert cache.valid(b"digest") is ENTRY
    assert cache.refused(b"junk", now=1.0) is not None


def test_a_refusal_is_remembered_for_five_seconds() -> None:
    cache = cache_with()
    cache.add_refused(b"junk", reason="no", now=0.0, version=cache.version)
    assert cache.refused(b"junk", now=4.9) is not None
    assert cache.refused(b"junk", now=5.0) is None


def test_the_oldest_secret_yields_and_the_other_one_of_its_key_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_VALID", 2)
    cache = cache_with(b"1", b"2", b"3")
    assert [cache.valid(digest) for digest in (b"1", b"2", b"3")] == [None, ENTRY, ENTRY]
    cache.forget([KEY])
    assert cache.valid(b"3") is None
