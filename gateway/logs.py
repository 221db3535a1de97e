"""JSON log lines for people and machines, from which keys are cut out wherever they came from."""

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Final, TextIO

# A word that begins like an API key, also one that is cut short or misspelt; a key inside another word.
_KEYS: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{6,}|sk-[a-z]{1,16}-[A-Za-z0-9]{12}-[A-Za-z0-9_-]{6,}")
_CREDENTIALS: Final = re.compile(r"(?<=earer )[^\s\"'\\]+")  # whatever follows "Bearer"
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line. What a call passes as `extra` becomes fields of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, without keys."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, ensure_ascii=False, default=str))


class Trouble:
    """Something that is tried again and again: its failing is logged once, and once that it is over."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._is_failing = False

    def note(self, error: Exception, *, is_foreseeable: bool) -> None:
        """It failed; of what nobody foresaw the log gets the traceback."""
        if not self._is_failing:
            self._logger.warning("%s: %s", self._what, error, exc_info=None if is_foreseeable else error)
        self._is_failing = True

    def end(self) -> None:
        """It worked."""
        if self._is_failing:
            self._logger.info("%s: no longer", self._what)
        self._is_failing = False


def redact(text: str) -> str:
    """`text` without API keys, and without whatever else somebody would be let in by."""
    text = without_keys(text)
    return _CREDENTIALS.sub("[redacted]", text) if "earer " in text else text


def without_keys(text: str) -> str:
    """`text` without anything that looks like an API key."""
    if "sk-" not in text:  # nearly always; the pattern costs 30 us a line
        return text
    return _KEYS.sub("[redacted]", text)


def configure_logging(stream: TextIO, *, level: int = logging.INFO) -> None:
    """Sends this process's log to `stream`. Call once, at start."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # a line of ours says more, with the trace id
