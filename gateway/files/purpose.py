"""What a file is for: the wire's words."""

from enum import StrEnum


class Purpose(StrEnum):
    """A closed set."""

    BATCH = "batch"  # requests, one a line
    BATCH_OUTPUT = "batch_output"  # answers or errors, made by a batch
