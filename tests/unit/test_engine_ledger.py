"""What an engine remembers of ended requests is bounded in number and in time."""

from dataclasses import dataclass

from engine.ledger import REMEMBERED_SECONDS, Ledger
from engine.protocol import RequestRecord, Usage


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def record(id: str) -> RequestRecord:
    return RequestRecord(id=id, usage=Usage(3, 0, 2))


def ids(ledger: Ledger, epoch: int = 1) -> list[str]:
    return [each.id for each in ledger.of_epoch(epoch)]


def test_each_life_has_its_own() -> None:
    ledger = Ledger()
    ledger.add(1, record("a"))
    ledger.add(2, record("b"))
    assert (ids(ledger, 1), ids(ledger, 2)) == (["a"], ["b"])


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    ledger = Ledger(max_records=2)
    for id in "abc":
        ledger.add(1, record(id))
    assert ids(ledger) == ["b", "c"]


def test_what_nobody_asked_for_in_time_is_forgotten() -> None:
    """An hour of requests filled the memory until the number was reached."""
    clock = Clock()
    ledger = Ledger(clock=clock)
    ledger.add(1, record("old"))
    clock.now = REMEMBERED_SECONDS - 1
    ledger.add(1, record("newer"))
    assert ids(ledger) == ["old", "newer"]
    clock.now = REMEMBERED_SECONDS + 1
    ledger.add(1, record("new"))
    assert ids(ledger) == ["newer", "new"]
