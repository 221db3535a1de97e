"""Choosing tokens over a batch of logits, in C++. See reference.py for what it computes."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.sampling.reference import SamplingRow
from kernels.tensors import Address, address


class SamplingRowsStruct(ctypes.Structure):
    """As struct SamplingRows in native.h."""

    _fields_ = (
        ("num_rows", ctypes.c_int32),
        ("num_banned", ctypes.c_int32),
        ("temperatures", Address),
        ("top_ps", Address),
        ("top_ks", Address),
        ("seeds", Address),
        ("positions", Address),
        ("banned_rows", Address),
        ("banned_ids", Address),
    )


def sample(library: ctypes.CDLL, logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
    # logits [num_rows, vocab_size] float32, overwritten -> [num_rows] int64, [num_rows] bool
    """As reference.sample."""
    temperatures, top_ks, top_ps, seeds, positions, banned_ids = zip(*rows, strict=True)
    banned = [(index, id_) for index, ids in enumerate(banned_ids) for id_ in ids]
    if any(not 0 <= id_ < logits.shape[1] for _, id_ in banned):
        raise IndexError(f"a banned token id is not below {logits.shape[1]}")
    columns = (
        np.array(temperatures, dtype=np.float32),
        np.array(top_ps, dtype=np.float32),
        np.array(top_ks, dtype=np.int32),
        np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64),
        np.array(positions, dtype=np.int64),
        np.array([index for index, _ in banned], dtype=np.int32),
        np.array([id_ for _, id_ in banned], dtype=np.int32),
    )
    struct = SamplingRowsStruct(len(rows), len(banned), *(Address(column.ctypes.data) for column in columns))
    token_ids = torch.empty(len(rows), dtype=torch.int64)
    is_finite = torch.empty(len(rows), dtype=torch.bool)
    library.sluice_sample(
        address(logits),
        ctypes.c_int(logits.shape[1]),
        ctypes.byref(struct),
        address(token_ids, torch.int64),
        address(is_finite, torch.bool),
    )
    return token_ids, is_finite
