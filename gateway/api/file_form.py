"""What the fields of an upload's form say, in whatever order they come. It knows no file's bytes."""

from typing import Final

from gateway.api.multipart import Field, FileBegins
from gateway.errors import InvalidRequest
from gateway.files.purpose import Purpose
from gateway.filing import Wanted

MIN_KEEP_SECONDS: Final = 3_600
MAX_KEEP_SECONDS: Final = 2_592_000
PURPOSE: Final = "purpose"
FILE: Final = "file"
ANCHOR: Final = "expires_after[anchor]"
SECONDS: Final = "expires_after[seconds]"
_UNNAMED: Final = "upload.jsonl"


class FileForm:
    """The fields so far; those that are not ours are let by."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._filename: str | None = None

    def note(self, field: Field) -> None:
        """A field came. Raises InvalidRequest at once where its value cannot be used."""
        self._fields[field.name] = field.value
        if field.name == PURPOSE:
            _check_purpose(field.value)

    def note_file(self, begins: FileBegins) -> None:
        """The file begins. Raises InvalidRequest where it is another, or in no field of ours."""
        if begins.name != FILE or self._filename is not None:
            raise InvalidRequest("One file is wanted, in the field 'file'.", param=FILE)
        self._filename = begins.filename or _UNNAMED

    def wanted(self) -> Wanted:
        """All that it says. Raises InvalidRequest where something is missing."""
        if self._filename is None:
            raise InvalidRequest("A file is missing: the field 'file'.", param=FILE)
        if PURPOSE not in self._fields:
            raise InvalidRequest("The field 'purpose' is missing.", param=PURPOSE)
        return Wanted(filename=self._filename, purpose=Purpose.BATCH, keep_seconds=self._keep_seconds())

    def _keep_seconds(self) -> int | None:
        anchor, seconds = self._fields.get(ANCHOR), self._fields.get(SECONDS)
        if anchor is None and seconds is None:
            return None
        if anchor != "created_at":
            raise InvalidRequest(f"'{ANCHOR}' has to be 'created_at'.", param=ANCHOR)
        if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
            raise InvalidRequest(f"'{SECONDS}' has to be a whole number.", param=SECONDS)
        if not MIN_KEEP_SECONDS <= int(seconds) <= MAX_KEEP_SECONDS:
            raise InvalidRequest(
                f"'{SECONDS}' has to be {MIN_KEEP_SECONDS} to {MAX_KEEP_SECONDS}.", param=SECONDS
            )
        return int(seconds)


def _check_purpose(purpose: str) -> None:
    if purpose != Purpose.BATCH:
        raise InvalidRequest(f"'{purpose}' is not one of ['batch'] - 'purpose'.", param=PURPOSE)
