"""Settings come from the environment and a file; wrong ones fail in one line that names the key."""

from pathlib import Path

import pytest

from gateway.setting_sources import ConfigurationError
from gateway.settings import load_settings

SECRET = "ab" * 16
GOOD = {
    "SLUICE_DATABASE_URL": "postgresql+psycopg://x/y",
    "SLUICE_SECRETS__KEY_PEPPER": SECRET,
    "SLUICE_SECRETS__CACHE_NAMESPACE": SECRET,
    "SLUICE_SECRETS__ENGINE_SHARED": SECRET,
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)


def test_what_is_not_given_has_a_default() -> None:
    settings = load_settings()
    assert settings.gateway.engines == ("ws://127.0.0.1:8090",)
    assert settings.gateway.max_body_bytes == 4 * 1024 * 1024


def test_engines_may_be_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_GATEWAY__ENGINES", "ws://a:1, ws://b:2")
    assert load_settings().gateway.engines == ("ws://a:1", "ws://b:2")


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text('[gateway]\nport = 1\nhost = "0.0.0.0"\n[engine]\nmodel = "m"\n[slo]\nx = 1\n')
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    monkeypatch.setenv("SLUICE_GATEWAY__PORT", "2")
    monkeypatch.setenv("SLUICE_ENGINE__MODEL", "other")
    settings = load_settings()
    assert (settings.gateway.port, settings.gateway.host) == (2, "0.0.0.0")


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("SLUICE_GATEWAY__PORT", "70000", "gateway.port"),
        ("SLUICE_GATEWAY__PORT", "many", "gateway.port"),
        ("SLUICE_GATEWAY__ENGINES", "http://a", "gateway.engines.0"),
        ("SLUICE_GATEWAY__ENGINES", "", "gateway.engines"),
        ("SLUICE_GATEWAY__ENGINES", "ws://a:many", "gateway.engines.0"),
        ("SLUICE_GATEWAY__ENGINES", "ws://:8090", "gateway.engines.0"),
        ("SLUICE_DATABASE_URL", "garbage", "database_url"),
        ("SLUICE_DATABASE_URL", "mysql://x/y", "database_url"),
        ("SLUICE_DATABASE_URL", "postgresql://x:many/y", "database_url"),
        ("SLUICE_GATEWAY__KEEPALIVE_SECONDS", "0", "gateway.keepalive_seconds"),
        ("SLUICE_GATEWAY__PROT", "1", "gateway.prot"),
        ("SLUICE_SECRETS__KEY_PEPPER", "xyz" * 12, "secrets.key_pepper"),
        ("SLUICE_SECRETS__KEY_PEPPER", "ab", "secrets.key_pepper"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, key: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as failure:
        load_settings()
    assert key in str(failure.value)
    assert name in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=name):
        load_settings()


@pytest.mark.parametrize(
    ("text", "message"), [("[gateway", "not valid TOML"), ("[gateway]\nprot = 1\n", r"gateway\.prot")]
)
def test_a_wrong_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text(text)
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    with pytest.raises(ConfigurationError, match=message):
        load_settings()


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CONFIG", "/nowhere/sluice.toml")
    with pytest.raises(ConfigurationError, match=r"/nowhere/sluice\.toml"):
        load_settings()


def test_secrets_do_not_show() -> None:
    assert SECRET not in repr(load_settings())
