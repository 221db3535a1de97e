"""Whatever is written, stored, synced and cut off: the journal replays to what a model of it says."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.usage.journal import Journal
from gateway.usage.journal_format import (
    Closed,
    Extended,
    JournalRecord,
    Opened,
    Reached,
    frame,
    read,
    replayed,
)
from gateway.usage.journal_lives import abandoned, release, replay
from gateway.usage.outcome import Outcome
from tests.builders.journals import ADMITTED_AT, closed, more, opened, reached

names = st.text(max_size=8)
counts = st.integers(0, 2**40)
records = st.one_of(
    st.builds(Opened, names, st.binary(max_size=80), counts, st.just(ADMITTED_AT)),
    st.builds(Extended, names, counts),
    st.builds(Reached, names, counts, counts),
    st.builds(Closed, names, counts, counts, counts, st.sampled_from(Outcome)),
)


@given(st.lists(records, max_size=10), st.data())
def test_every_record_before_a_cut_is_read_and_none_after(
    written: list[JournalRecord], data: st.DataObject
) -> None:
    frames = [frame(record) for record in written]
    cut = data.draw(st.integers(0, sum(map(len, frames))))
    whole = [number for number in range(len(frames) + 1) if len(b"".join(frames[:number])) <= cut]
    assert read(b"".join(frames)[:cut]) == (written[: whole[-1]], len(b"".join(frames[: whole[-1]])))


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_spoilt_byte_is_never_read_as_something_else(
    written: list[JournalRecord], data: st.DataObject
) -> None:
    whole = b"".join(map(frame, written))
    place = data.draw(st.integers(0, len(whole) - 1))
    spoilt = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    found, num_read = read(spoilt)
    assert found == written[: len(found)]
    assert num_read <= place


@dataclass(frozen=True)
class Begin:
    name: str


@dataclass(frozen=True)
class Extend:
    name: str


@dataclass(frozen=True)
class Reach:
    name: str
    completion_tokens: int


@dataclass(frozen=True)
class End:
    name: str


@dataclass(frozen=True)
class Store:
    """All that has ended and is called this or comes before it."""

    name: str


@dataclass(frozen=True)
class Sync:
    pass


Act = Begin | Extend | Reach | End | Store | Sync
few_names = st.sampled_from("abc")
acts = st.lists(
    st.one_of(
        st.builds(Begin, few_names),
        st.builds(Extend, few_names),
        st.builds(Reach, few_names, st.integers(1, 1_000)),
        st.builds(End, few_names),
        st.builds(Store, few_names),
        st.just(Sync()),
    ),
    min_size=10,
    max_size=60,
)


@dataclass
class Model:
    """A journal's user: what it appended, where each record ends, what it was told is safe or stored."""

    journal: Journal
    folder: Path
    written: list[tuple[Path, int, JournalRecord]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    safe: tuple[Path | None, int] = (None, 0)
    num_begun: int = 0
    open: dict[str, str] = field(default_factory=dict)  # from a letter to the id it has this time

    @property
    def end(self) -> tuple[Path, int]:
        newest = max(self.folder.glob("*.journal"))
        return newest, newest.stat().st_size

    def append(self, record: JournalRecord) -> None:
        self.journal.append(record)
        self.written.append((*self.end, record))

    async def act(self, act: Act) -> None:
        match act:
            case Begin(name) if name not in self.open:
                self.num_begun += 1
                self.open[name] = f"{name}{self.num_begun}"
                self.append(opened(self.open[name]))
            case Extend(name) if name in self.open:
                self.append(more(self.open[name]))
            case Reach(name, completion_tokens) if name in self.open:
                self.append(reached(self.open[name], completion_tokens))
            case End(name) if name in self.open:
                self.ended.add(self.open[name])
                self.append(closed(self.open.pop(name)))
            case Store(name):
                now = {ended for ended in self.ended if ended[0] <= name}
                self.journal.stored(now)
                self.stored |= now
            case Sync():
                await self.journal.sync()
                self.safe = self.end

    def kill(self) -> None:
        """The kernel closes what was open, and so lets the lock go."""
        for segment in self.journal._segments:
            segment.close()
        release(self.journal._life)


def cut(model: Model, num_bytes: int) -> Sequence[JournalRecord]:
    """Takes the end of the newest segment away, but nothing that was synced; returns what is left."""
    newest, size = model.end
    floor = model.safe[1] if model.safe[0] == newest else 0
    size = max(floor, size - num_bytes)
    os.truncate(newest, size)
    return [record for path, end, record in model.written if path != newest or end <= size]


@settings(max_examples=150, deadline=None)
@given(acts, st.integers(40, 200), st.integers(0, 300))
def test_a_killed_life_replays_to_what_it_had_written(
    acts: list[Act], segment_bytes: int, num_cut_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Journal.open(Path(directory), 1, segment_bytes=segment_bytes), Path(directory))

        async def live() -> None:
            for act in acts:
                await model.act(act)

        asyncio.run(live())
        model.kill()
        expected = replayed(cut(model, num_cut_bytes))
        (life,) = abandoned(Path(directory))
        found = replay(life)
        release(life)
    assert found.open == expected.open
    assert found.closed.items() <= expected.closed.items()
    assert expected.closed.keys() - found.closed.keys() <= model.stored
