"""One line of a batch's input, as it comes: what to ask, of which endpoint, and under which name. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

LONGEST_CUSTOM_ID: Final = 512  # characters


class InputLine(msgspec.Struct, frozen=True):
    """`body` is what the endpoint at `url` would be sent, unread."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_CUSTOM_ID)]
    method: str
    url: str
    body: msgspec.Raw
