"""What the scheduler counts while it decides; whoever publishes figures reads it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from engine.core.sequence import SequenceClass


class FreeCause(Enum):
    """Why a sequence gave cache blocks back."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"
    PREEMPTED = "preempted"


@dataclass
class Figures:
    """Counts since the start; they only grow."""

    num_preemptions: Counter[SequenceClass] = field(default_factory=Counter)
    num_recomputed_tokens: int = 0
    num_blocks_freed: Counter[FreeCause] = field(default_factory=Counter)
    num_prefix_queried_tokens: int = 0  # prompt tokens looked up in the prefix cache, first admissions only
    num_prefix_hit_tokens: int = 0
