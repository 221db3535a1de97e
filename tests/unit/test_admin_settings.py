"""The admin UI's settings from the environment and a file; what is wrong is named."""

from pathlib import Path

import pytest

from admin_ui.settings import load_settings
from gateway.setting_sources import ConfigurationError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DATABASE_URL", "postgresql://nowhere/none")
    monkeypatch.setenv("SLUICE_SECRETS__KEY_PEPPER", "ab" * 16)
    monkeypatch.setenv("SLUICE_SECRETS__ENGINE_SHARED", "cd" * 16)
    monkeypatch.setenv("SLUICE_SECRETS__CACHE_NAMESPACE", "of another process")
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)


def test_the_environment_beats_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text("[admin]\nport = 9001\nhost = '0.0.0.0'\n[engine]\nmodel = 'x'\n")
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    monkeypatch.setenv("SLUICE_ADMIN__PORT", "9002")
    admin = load_settings().admin
    assert (admin.host, admin.port) == ("0.0.0.0", 9002)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("SLUICE_ADMIN__PORT", "many", "admin.port"),
        ("SLUICE_ADMIN__API_URL", "127.0.0.1:8080", "admin.api_url"),
        ("SLUICE_ADMIN__PROT", "9001", "admin.prot"),
        ("SLUICE_SECRETS__KEY_PEPPER", "short", "secrets.key_pepper"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_key(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, key: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    assert key in str(refused.value)
    assert "\n" not in str(refused.value)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ab" * 16 not in repr(load_settings())
