"""An engine's process and `sluice serve` name what is wrong in their settings in one line, too."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import engine_settings, serve_settings
from gateway.setting_sources import ConfigurationError

LOADERS = [engine_settings.load_settings, serve_settings.load]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_SECRETS__ENGINE_SHARED", "cd" * 16)
    monkeypatch.setenv("SLUICE_SECRETS__KEY_PEPPER", "of another process")
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("SLUICE_ENGINE__KV_BLOCK_SIZE", "0", "engine.kv_block_size"),
        ("SLUICE_ENGINE__KV_CACHE_GIB", "inf", "engine.kv_cache_gib"),
        ("SLUICE_ENGINE__NUM_THREADS", "-1", "engine.num_threads"),
        ("SLUICE_ENGINE", "{bad", "engine"),
        ("SLUICE_SLO__TTFT_P95_MS", "fast", "slo.ttft_p95_ms"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_key(
    monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], name: str, value: str, key: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=key) as refused:
        load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("load", LOADERS)
def test_a_file_that_is_no_toml_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, load: Callable[[], object]
) -> None:
    file = tmp_path / "sluice.toml"
    file.write_text("x = [")
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load()


def test_the_shared_secret_does_not_show() -> None:
    settings = engine_settings.load_settings()
    assert "cd" * 16 not in repr(settings) + repr(settings.of_engine)
