"""Turns templates and values into HTML. Everything is escaped; an unknown name in a template is an error.

Knows where templates and static files lie; knows no request, session or store.
"""

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from admin_ui import formatting

_HERE: Final = Path(__file__).parent
STATIC_FOLDER: Final = _HERE / "static"
TEMPLATES_FOLDER: Final = _HERE / "templates"


class Renderer:
    """Renders the templates of this package."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals["static_version"] = _static_version()
        self._environment.filters.update(
            bytes=formatting.num_bytes,
            count=formatting.count,
            day=formatting.day,
            duration=formatting.duration,
            limit=formatting.limit,
            minute=formatting.minute,
            percent=formatting.percent,
            rate=formatting.rate,
        )
        self._environment.filters["since"] = _since_now

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The HTML of a template with these values."""
        return self._environment.get_template(template).render(values)


def _since_now(moment: datetime | None) -> str:
    return formatting.since(moment, now=datetime.now(UTC))


def _static_version() -> str:
    """Changes with any static file, so that no browser mixes an old stylesheet with a new page."""
    digest = hashlib.sha256()
    for path in sorted(STATIC_FOLDER.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
