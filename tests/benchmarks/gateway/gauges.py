"""Gauges of a Prometheus page."""

import urllib.request
from collections.abc import Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_SECONDS: Final = 5.0


def read_gauges(url: str) -> dict[str, float]:
    """All of a page's, by name and labels; raises OSError."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        return gauges_of(response.read().decode())


def gauges_of(page: str) -> dict[str, float]:
    """By name and labels, without the process's own memory and file counts."""
    return {
        _shown(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(page)
        if family.type == "gauge" and not family.name.startswith("process_")
        for sample in family.samples
    }


def _shown(name: str, labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{shown}}}" if shown else name
