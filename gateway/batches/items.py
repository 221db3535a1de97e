"""Lines of a batch's input that may be run, in columns: what a validator stores of them."""

import msgspec


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One line: where it lies in the file, and what is known of its prompt.

    `prefix` begins alike for prompts that begin alike, so that in its order those are neighbours.
    """

    line: int
    custom_id: str
    first_byte: int
    num_bytes: int
    prompt_tokens: int
    prefix: int


class Items(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines."""

    lines: list[int]
    custom_ids: list[str]
    first_bytes: list[int]
    num_bytes: list[int]
    prompt_tokens: list[int]
    prefixes: list[int]


def columns_of(items: list[Item]) -> Items:
    """The same, by column."""
    return Items(
        lines=[item.line for item in items],
        custom_ids=[item.custom_id for item in items],
        first_bytes=[item.first_byte for item in items],
        num_bytes=[item.num_bytes for item in items],
        prompt_tokens=[item.prompt_tokens for item in items],
        prefixes=[item.prefix for item in items],
    )
