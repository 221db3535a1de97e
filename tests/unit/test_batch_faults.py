"""Faults of a batch's input, as its row holds them."""

import json

import pytest

from gateway.batches.faults import Fault, read, stored


@pytest.mark.parametrize(("quoted", "kept"), [("a\0b", "a\\u0000b"), ("a\ud800b", "a\\ud800b"), ("é", "é")])
def test_what_no_row_can_hold_is_told_escaped(quoted: str, kept: str) -> None:
    """A NUL in a line's url lost all faults of its file, and had it read again and again."""
    row = stored([Fault("url_mismatch", 3, f"'url' is '{quoted}'.", f"url {quoted}")])
    json.dumps(row).encode()
    assert read(row) == (Fault("url_mismatch", 3, f"'url' is '{kept}'.", f"url {kept}"),)
