"""The secrets of an installation are made once, whoever asks first."""

from pathlib import Path

import pytest

from deploy.data_directory import DataDirectory, DataDirectoryError


def test_who_starts_at_the_same_time_takes_the_secrets_that_were_there_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DataDirectory(tmp_path).secrets()
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as it was when the second one looked
    assert DataDirectory(tmp_path).secrets() == first


def test_the_secrets_are_their_owners_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    DataDirectory(tmp_path).secrets()
    (file,) = tmp_path.iterdir()
    assert (file.name, file.stat().st_mode & 0o777) == ("secrets.toml", 0o600)


def test_secrets_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "secrets.toml").mkdir()
    with pytest.raises(DataDirectoryError, match=r"secrets\.toml"):
        DataDirectory(tmp_path).secrets()
