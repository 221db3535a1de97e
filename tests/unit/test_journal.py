"""The journal keeps what the store has not, and nothing for longer."""

import asyncio
from pathlib import Path

import pytest

from engine.protocol import Usage
from gateway.errors import JournalUnavailable
from gateway.usage.journal import Journal
from gateway.usage.journal_format import Opened, Replayed, frame
from gateway.usage.journal_lives import abandoned, release, remove, replay
from gateway.usage.outcome import Outcome
from tests.builders.journals import ADMITTED_AT, closed, more, no_file_longer_than, opened, reached


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Made by the first who needs it."""
    return tmp_path / "state" / "journal"


@pytest.fixture
def journal(folder: Path) -> Journal:
    """Of epoch 7; a segment has room for two or three records."""
    return Journal.open(folder, 7, segment_bytes=160)


def left_behind(folder: Path) -> Replayed:
    """What the one dead life in the folder had written; it stays."""
    (life,) = abandoned(folder)
    try:
        return replay(life)
    finally:
        release(life)


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.journal"))


def test_what_was_open_and_what_had_ended_is_replayed(journal: Journal, folder: Path) -> None:
    for record in (opened("a"), opened("b"), more("a", 10), closed("b"), more("a", 5)):
        journal.append(record)
    journal.close()
    replayed = left_behind(folder)
    assert replayed.open == {"a": opened("a", 115)}
    assert replayed.closed == {"b": (opened("b"), closed("b"))}
    assert replayed.open["a"].admitted_at == ADMITTED_AT, "to the microsecond: the ledger's key"


def test_how_far_an_open_request_had_come_is_replayed(journal: Journal, folder: Path) -> None:
    journal.append(opened("queued"))
    journal.append(opened("running"))
    journal.append(reached("running", 64))
    for _ in range(5):  # until other segments say again what is open
        journal.append(more("running", 10))
        journal.append(opened("x"))
        journal.append(closed("x"))
    journal.append(reached("running", 128))
    journal.close()
    replayed = left_behind(folder)
    assert replayed.open["queued"].most_used is None
    assert replayed.open["running"].most_used == Usage(3, 0, 128)
    assert replayed.open["running"].tokens == 150
    assert len(segments(folder)) > 2


def test_an_end_without_any_use_is_not_taken_for_an_unknown_one(journal: Journal, folder: Path) -> None:
    """C4: zero is what was used; open is what nobody knows."""
    journal.append(opened("a"))
    journal.append(closed("a", completion_tokens=0))
    journal.close()
    replayed = left_behind(folder)
    assert not replayed.open
    assert replayed.closed["a"][1].usage.completion_tokens == 0
    assert replayed.closed["a"][1].outcome is Outcome.FINISHED


def test_a_life_that_goes_on_is_not_abandoned(journal: Journal, folder: Path) -> None:
    journal.append(opened())
    assert abandoned(folder) == []
    journal.close()
    assert [life.epoch for life in abandoned(folder)] == [7]


def test_of_two_who_look_one_gets_an_abandoned_life(journal: Journal, folder: Path) -> None:
    journal.append(opened())
    journal.close()
    first = abandoned(folder)
    assert abandoned(folder) == []
    release(first[0])
    assert [life.epoch for life in abandoned(folder)] == [7]


def test_what_is_removed_does_not_come_back(journal: Journal, folder: Path) -> None:
    journal.append(opened())
    journal.close()
    for life in abandoned(folder):
        remove(life)
    assert abandoned(folder) == []
    assert segments(folder) == []


def test_a_folder_nobody_made_has_no_abandoned_lives(tmp_path: Path) -> None:
    assert abandoned(tmp_path / "none") == []


def test_a_life_that_ends_with_all_stored_leaves_nothing(journal: Journal, folder: Path) -> None:
    journal.append(opened("a"))
    journal.append(closed("a"))
    journal.stored(["a"])
    journal.close()
    assert [path.name for path in folder.iterdir()] == ["guard"]


async def test_segments_go_when_all_in_them_is_stored(journal: Journal, folder: Path) -> None:
    for number in range(20):
        journal.append(opened(f"{number}"))
        journal.append(closed(f"{number}"))
    await journal.sync()
    assert len(segments(folder)) > 5
    journal.stored(f"{number}" for number in range(20) if number != 4)
    await journal.sync()
    assert set(left_after_kill(journal, folder).closed) >= {"4"}
    journal.stored(["4"])
    await journal.sync()
    assert len(segments(folder)) == 1


def left_after_kill(journal: Journal, folder: Path) -> Replayed:
    """What others would find, were the process killed now."""
    copy = folder.parent / "copy"
    copy.mkdir(exist_ok=True)
    for path in folder.glob("*.journal"):
        (copy / path.name).write_bytes(path.read_bytes())
    return left_behind(copy)


async def test_a_request_that_runs_for_hours_keeps_no_old_segment(journal: Journal, folder: Path) -> None:
    journal.append(opened("long", 1))
    for number in range(50):
        journal.append(more("long", 1))
        journal.append(opened(f"{number}"))
        journal.append(closed(f"{number}"))
        journal.stored([f"{number}"])
        await journal.sync()
    assert len(segments(folder)) <= 2
    assert left_after_kill(journal, folder).open == {"long": opened("long", 51)}


async def test_a_segment_stays_until_what_was_open_in_it_is_safe_in_the_next(
    journal: Journal, folder: Path
) -> None:
    journal.append(opened("a"))
    syncing = asyncio.create_task(journal.sync())
    await asyncio.sleep(0)  # it has asked for what is there by now
    while len(segments(folder)) == 1:
        journal.append(more("a"))
    await syncing
    assert len(segments(folder)) == 2
    await journal.sync()
    assert len(segments(folder)) == 1


@pytest.mark.parametrize("tail", [b"\x07", bytes(4096), frame(opened("b"))[:-1], b"\xff" * 64])
def test_a_torn_end_costs_nothing_that_was_whole(
    journal: Journal, folder: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append(opened("a"))
    journal.close()
    (segment,) = folder.glob("*.journal")
    segment.write_bytes(segment.read_bytes() + tail)
    assert left_behind(folder).open == {"a": opened("a")}
    assert "ends torn" in caplog.text


def test_a_spoilt_segment_does_not_hide_the_next_one(journal: Journal, folder: Path) -> None:
    for name in "abcdef":
        journal.append(opened(name))
        journal.append(closed(name))
    journal.close()
    first, *_ = sorted(folder.glob("*.journal"))
    data = bytearray(first.read_bytes())
    data[10] ^= 1
    first.write_bytes(data)
    assert set(left_behind(folder).closed) == {"d", "e", "f"}, "the first three were in the spoilt one"


def test_a_full_disk_refuses_the_record_and_spoils_none(
    journal: Journal, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append(opened("a"))
    (segment,) = folder.glob("*.journal")
    for num_bytes_left in (0, 5):
        with (
            no_file_longer_than(segment.stat().st_size + num_bytes_left),
            pytest.raises(JournalUnavailable, match="cannot be written down"),
        ):
            journal.append(opened("a long name that has no room"))
    journal.append(opened("b"))
    journal.close()
    assert set(left_behind(folder).open) == {"a", "b"}


def test_a_disk_too_full_for_the_next_segment_refuses_the_record(journal: Journal, folder: Path) -> None:
    journal.append(opened("a"))
    journal.append(opened("b"))
    with no_file_longer_than(20), pytest.raises(JournalUnavailable):
        journal.append(opened("c"))
    assert len(segments(folder)) == 1
    journal.append(opened("d"))
    journal.close()
    assert set(left_behind(folder).open) == {"a", "b", "d"}


def test_a_disk_that_is_full_at_the_start_is_said_at_the_start(folder: Path) -> None:
    with no_file_longer_than(0), pytest.raises(JournalUnavailable, match="cannot be written down"):
        Journal.open(folder, 1)
    assert segments(folder) == []
    Journal.open(folder, 1).close()


def test_a_folder_that_cannot_be_made_is_one_line_with_its_name(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(
        JournalUnavailable, match=r"Usage cannot be kept in .*file/journal: Not a directory\."
    ):
        Journal.open(in_the_way / "journal", 1)


def test_two_processes_cannot_be_one_life(journal: Journal, folder: Path) -> None:
    with pytest.raises(JournalUnavailable, match=r"epoch 7 is kept in .* by another process"):
        Journal.open(folder, 7)


def test_a_number_given_again_by_a_new_store_spoils_no_old_life(journal: Journal, folder: Path) -> None:
    journal.append(opened("old"))
    journal.close()
    namesake = Journal.open(folder, 7)
    namesake.append(opened("new"))
    namesake.append(closed("new"))
    namesake.stored(["new"])
    namesake.close()
    assert set(left_behind(folder).open) == {"old"}


def test_a_record_of_a_later_version_with_more_fields_can_be_read(folder: Path) -> None:
    class LaterOpened(Opened, frozen=True, array_like=True, tag=1):
        project: str = "p"

    folder.mkdir(parents=True)
    later = LaterOpened("a", b"who pays", 100, ADMITTED_AT)
    (folder / "1-00000001.journal").write_bytes(frame(later))
    assert left_behind(folder).open == {"a": opened("a")}
