"""Work is grouped while a commit runs, and one bad item fails alone."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.errors import StoreUnavailable
from gateway.group_commit import MAX_GROUP, GroupCommit


class Commits:
    """Commits that wait to be let go, and remember their groups. A "bad" item fails its group."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()

    async def commit(self, items: Sequence[str]) -> list[str]:
        self.groups.append(list(items))
        self.begun.set()
        await self.gate.wait()
        if "bad" in items:
            raise ValueError("bad")
        if "away" in items:
            raise StoreUnavailable("away")
        return [item.upper() for item in items]


async def test_what_arrives_during_a_commit_goes_together_in_the_next() -> None:
    commits = Commits()
    group = GroupCommit(commits.commit)
    first = group.submit("a")
    await commits.begun.wait()
    others = [group.submit(item) for item in "bcd"]
    commits.gate.set()
    assert await asyncio.gather(first, *others) == ["A", "B", "C", "D"]
    assert commits.groups == [["a"], ["b", "c", "d"]]


async def test_a_group_is_bounded() -> None:
    commits = Commits()
    commits.gate.set()
    group = GroupCommit(commits.commit)
    await asyncio.gather(*(group.submit("x") for _ in range(MAX_GROUP + 1)))
    assert [len(items) for items in commits.groups] == [MAX_GROUP, 1]


async def test_a_bad_item_fails_alone() -> None:
    commits = Commits()
    commits.gate.set()
    group = GroupCommit(commits.commit)
    answers = await asyncio.gather(
        *(group.submit(item) for item in ("a", "bad", "c")), return_exceptions=True
    )
    assert [answers[0], answers[2]] == ["A", "C"]
    assert isinstance(answers[1], ValueError)


async def test_a_store_that_is_away_is_asked_once_for_the_whole_group() -> None:
    commits = Commits()
    commits.gate.set()
    group = GroupCommit(commits.commit)
    answers = await asyncio.gather(*(group.submit(item) for item in ("a", "away")), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert len(commits.groups) == 1


async def test_draining_waits_for_all_that_was_submitted() -> None:
    commits = Commits()
    group = GroupCommit(commits.commit)
    answer = group.submit("a")
    draining = asyncio.create_task(group.drain())
    await commits.begun.wait()
    assert not draining.done()
    commits.gate.set()
    await draining
    assert answer.result() == "A"


async def test_cancelling_cancels_what_is_under_way_and_what_waits() -> None:
    commits = Commits()
    group = GroupCommit(commits.commit)
    under_way = group.submit("a")
    await commits.begun.wait()
    waiting = group.submit("b")
    group.cancel()
    await group.drain()
    assert under_way.cancelled()
    assert waiting.cancelled()


async def test_a_cancelled_waiter_does_not_stop_the_commit() -> None:
    commits = Commits()
    group = GroupCommit(commits.commit)
    left, stayed = group.submit("a"), group.submit("b")
    left.cancel()
    commits.gate.set()
    assert await stayed == "B"
    with pytest.raises(asyncio.CancelledError):
        await left
