"""Which file store the settings choose, and what is said where they cannot."""

import sys
from pathlib import Path

import pytest

from gateway.errors import FileStoreUnavailable
from gateway.files.local_store import LocalFileStore
from gateway.files.places import file_store
from gateway.setting_sources import ConfigurationError
from gateway.settings import FilesSection
from gateway.tenants.ids import TenantId


def test_a_folder_is_used_without_being_touched(tmp_path: Path) -> None:
    store = file_store(FilesSection(directory=tmp_path / "files"))
    assert isinstance(store, LocalFileStore)
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_the_first_upload_says_what_to_set() -> None:
    store = file_store(FilesSection())
    assert list(store.blobs()) == []
    with pytest.raises(FileStoreUnavailable, match=r"\[files\] directory, or s3_bucket"):
        store.create(TenantId("ten_acme"))


def test_a_bucket_without_its_library_is_one_line_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "gateway.files.s3_store", raising=False)
    with pytest.raises(ConfigurationError, match=r"s3_bucket.*pip install 'sluice-llm\[s3\]'"):
        file_store(FilesSection(s3_bucket="bucket", directory=Path("unused")))
