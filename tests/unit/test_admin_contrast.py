"""The stylesheet's colours: text is readable on every ground it stands on, light and dark (WCAG AA)."""

import re
from collections.abc import Iterator

import pytest

from admin_ui.rendering import STATIC_FOLDER

READABLE = 4.5
PAIRS = [
    *((text, ground) for text in ("text", "muted") for ground in ("ground", "surface", "sunken")),
    *((text, ground) for text in ("accent", "bad") for ground in ("ground", "surface")),
    ("accent-strong", "accent-soft"),
    ("on-accent", "accent"),
    ("on-accent", "accent-strong"),
    *((tone, f"{tone}-soft") for tone in ("ok", "warn", "bad")),
    ("ok", "surface"),
]


def palettes() -> Iterator[dict[str, str]]:
    """The light palette, then the dark one."""
    css = (STATIC_FOLDER / "sluice.css").read_text()
    for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]:
        yield dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("pair", PAIRS, ids="-on-".join)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_is_readable_on_its_ground(scheme: int, pair: tuple[str, str]) -> None:
    palette = list(palettes())[scheme]
    assert contrast(palette[pair[0]], palette[pair[1]]) >= READABLE
