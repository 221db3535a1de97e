"""Blobs in a folder: whole or absent, whoever dies, and nowhere else."""

import os
import time
from pathlib import Path

import pytest

from gateway.errors import FileStoreUnavailable
from gateway.files.local_store import LocalFileStore
from gateway.files.store import LEFT_AFTER, BlobMissing
from gateway.tenants.ids import TenantId

ACME = TenantId("ten_acme")


@pytest.fixture
def store(tmp_path: Path) -> LocalFileStore:
    return LocalFileStore(tmp_path / "files")


def stored(store: LocalFileStore, *chunks: bytes) -> str:
    writer = store.create(ACME)
    for chunk in chunks:
        writer.write(chunk)
    return writer.commit()


def everything(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.rglob("*") if path.is_file()]


def test_a_blob_is_read_back_whole_and_from_any_byte_on(store: LocalFileStore) -> None:
    blob = stored(store, b"one\n", b"two\n")
    with store.open(blob) as opened:
        assert opened.read() == b"one\ntwo\n"
    with store.open(blob, start=4) as opened:
        assert opened.read() == b"two\n"


def test_slices_come_in_the_order_they_were_asked_for(store: LocalFileStore) -> None:
    blob = stored(store, b"0123456789")
    assert store.read_slices(blob, [(8, 2), (0, 3), (3, 2), (0, 3), (6, 0)]) == [
        b"89",
        b"012",
        b"34",
        b"012",
        b"",
    ]


def test_a_slice_past_the_end_is_no_short_answer(store: LocalFileStore) -> None:
    blob = stored(store, b"0123456789")
    with pytest.raises(BlobMissing):
        store.read_slices(blob, [(8, 3)])


def test_nothing_is_there_before_it_is_whole(store: LocalFileStore) -> None:
    writer = store.create(ACME)
    writer.write(b"half")
    assert list(store.blobs()) == []
    blob = writer.commit()
    assert [found.name for found in store.blobs()] == [blob]


def test_what_is_given_up_leaves_nothing(store: LocalFileStore, tmp_path: Path) -> None:
    writer = store.create(ACME)
    writer.write(b"half")
    writer.abort()
    writer.abort()
    assert everything(tmp_path) == []


def test_a_removed_blob_is_gone_and_may_be_removed_again(store: LocalFileStore) -> None:
    blob = stored(store, b"text")
    store.delete(blob)
    store.delete(blob)
    with pytest.raises(BlobMissing):
        store.open(blob)


def test_a_blob_is_as_old_as_its_being_whole(store: LocalFileStore, tmp_path: Path) -> None:
    writer = store.create(ACME)
    writer.write(b"text")
    before = time.time() - 1
    os.utime(next(tmp_path.rglob("*.part")), (0, 0))
    writer.commit()
    (found,) = store.blobs()
    assert found.stored_at.timestamp() >= before


def test_what_a_dead_writer_left_goes_hours_later_and_not_before(
    store: LocalFileStore, tmp_path: Path
) -> None:
    writer = store.create(ACME)
    (part,) = tmp_path.rglob("*.part")
    assert list(store.blobs()) == []
    assert part.exists()
    os.utime(part, (0, time.time() - LEFT_AFTER.total_seconds() - 1))
    assert list(store.blobs()) == []
    assert not part.exists()
    writer.abort()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../secret",
        "ten_acme/../../secret",
        "/etc/passwd",
        "ten_acme/" + "g" * 32,
        "..//" + "a" * 32,
        "a/b",
    ],
)
def test_no_name_leads_out_of_the_folder(store: LocalFileStore, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    for use in (store.open, store.delete):
        with pytest.raises(BlobMissing):
            use(name)
    assert (tmp_path / "secret").exists()


def test_no_tenant_is_a_way_out_either(store: LocalFileStore) -> None:
    with pytest.raises(ValueError, match="folder"):
        store.create(TenantId("../elsewhere"))


def test_a_folder_on_a_disk_that_is_not_there_is_unavailable_and_not_made(tmp_path: Path) -> None:
    store = LocalFileStore(tmp_path / "not mounted" / "files")
    with pytest.raises(FileStoreUnavailable, match=r"\[files\] directory.*No such file"):
        store.create(ACME)
    assert list(store.blobs()) == []
    assert everything(tmp_path) == []


def test_a_full_disk_is_one_line_without_a_path(store: LocalFileStore, tmp_path: Path) -> None:
    writer = store.create(ACME)
    (part,) = tmp_path.rglob("*.part")
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), writer.fileno())
    with pytest.raises(FileStoreUnavailable, match="full: delete files") as refused:
        writer.write(b"text")
    assert str(tmp_path) not in refused.value.message
    writer.abort()
    assert not part.exists()


def test_others_on_the_machine_cannot_read_blobs(store: LocalFileStore, tmp_path: Path) -> None:
    stored(store, b"text")
    assert [oct(path.stat().st_mode & 0o077) for path in (tmp_path / "files").rglob("*")] == ["0o0", "0o0"]
