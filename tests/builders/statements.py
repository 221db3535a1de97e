"""Counts what is sent to the store."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, event


class Statements:
    """SQL statements of the whole process, as text."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __len__(self) -> int:
        return len(self.texts)

    def note(self, _connection: object, _cursor: object, text: str, *_rest: object) -> None:
        """SQLAlchemy is about to send `text`; where a transaction begins, nothing is asked yet."""
        if not text.startswith("BEGIN"):
            self.texts.append(text)


@contextmanager
def counted_statements() -> Iterator[Statements]:
    """What is sent until left."""
    statements = Statements()
    event.listen(Engine, "before_cursor_execute", statements.note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", statements.note)
