"""Which tokens of a step belong to which sequence, and where each sequence's keys and values lie."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RaggedBatch:
    """Sequences of different lengths laid end to end: decode rows (one token) and prefill chunks alike.

    The queries of sequence i are the tokens `query_start_loc[i]` up to `query_start_loc[i + 1]` of the step
    and stand at its last positions, so the first of them has position `seq_lens[i]` less their number.
    Position p lies in block `block_tables[i, p // block_size]`; entries past a sequence's last block are
    never read.
    """

    query_start_loc: Tensor  # [num_seqs + 1] int32
    seq_lens: Tensor  # [num_seqs] int32, positions that keys exist for, those of this step included
    block_tables: Tensor  # [num_seqs, max_num_blocks] int32
    max_query_len: int
