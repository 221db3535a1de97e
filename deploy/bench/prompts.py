"""Turns segments into prompts: token ids, or words where a server wants text. Pure: a seed decides all."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deploy.bench.draws import random_for
from deploy.bench.workload import Segment

FIRST_ID: Final = 1_000  # below live special tokens and single bytes in most vocabularies
DEFAULT_VOCAB_SIZE: Final = 40_000

# Common enough to be one token each, after a space, in most vocabularies.
_COMMON_WORDS: Final = (
    "about above after again air all also always among and another answer any area around ask away back "
    "ball be become before began being below best better between big bird black blue boat body book both "
    "box boy bring build but by call came can car care carry change check child city class clear close "
    "cold color come common could country course cover cross cut dark day deep did distance do dog done "
    "door down draw dry during each early earth ease east eat end enough even ever every example eye face "
    "fact fall family far farm fast father feel feet few field figure fill final find fine fire first fish "
    "five fly follow food foot for force form found four free friend from front full game gave get girl "
    "give go gold good got govern great green ground group grow had half hand happen hard has have he head "
    "hear heat help her here high him his hold home horse hot hour house how hundred idea if in inch "
    "interest island it just keep kind king knew know land language large last late laugh law lay lead "
    "learn leave left less let letter life light like line list listen little live long look lot love low "
    "machine made main make man many map mark may me mean measure men might mile mind minute miss money "
    "moon more morning most mother mountain move much music must my name near need never new next night no "
    "north note nothing notice noun now number object of off often old on once one only open or order "
    "other our out over own page paper part pass pattern people perhaps person picture piece place plain"
)
WORDS: Final = _COMMON_WORDS.split()


class PromptKind(StrEnum):
    """How a prompt travels."""

    IDS = "ids"
    TEXT = "text"


@dataclass(frozen=True, kw_only=True)
class PromptMaker:
    """Makes the tokens of segments. Two equal makers make the same; another `purpose` shares no prefix."""

    seed: int
    vocab_size: int = DEFAULT_VOCAB_SIZE
    purpose: str = "load"

    def ids(self, segments: Sequence[Segment]) -> list[int]:
        """Token ids; about 0.4 µs each."""
        first = FIRST_ID if self.vocab_size > 2 * FIRST_ID else self.vocab_size // 4
        vocabulary = range(first, self.vocab_size)
        return [
            token_id
            for segment in segments
            for token_id in random_for(self.seed, f"{self.purpose}/{segment.name}").choices(
                vocabulary, k=segment.num_tokens
            )
        ]

    def text(self, segments: Sequence[Segment]) -> str:
        """One word for each token, each after a space; the server's own count may differ a little."""
        return "".join(f" {WORDS[token_id % len(WORDS)]}" for token_id in self.ids(segments))
