"""Causal attention over paged keys and values, in C++. See reference.py for what it computes."""

import ctypes

import torch
from torch import Tensor

from kernels.kv_write.native import kv_cache_struct
from kernels.paged_attention.batch import RaggedBatch
from kernels.tensors import Address, address


class AttentionBatchStruct(ctypes.Structure):
    """As struct AttentionBatch in native.h."""

    _fields_ = (
        ("num_seqs", ctypes.c_int32),
        ("table_stride", ctypes.c_int32),
        ("query_starts", Address),
        ("seq_lens", Address),
        ("block_tables", Address),
    )


def attention_batch_struct(batch: RaggedBatch) -> AttentionBatchStruct:
    """The batch for C++, which must not outlive its tensors."""
    return AttentionBatchStruct(
        batch.seq_lens.shape[0],
        batch.block_tables.stride(0),
        address(batch.query_start_loc, torch.int32),
        address(batch.seq_lens, torch.int32),
        Address(batch.block_tables.data_ptr()),
    )


def paged_attention(
    library: ctypes.CDLL,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: RaggedBatch,
    *,
    scale: float,
) -> Tensor:
    """As reference.paged_attention, in float32 over caches of pages.new_pages."""
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    library.sluice_paged_attention(
        ctypes.byref(attention_batch_struct(batch)),
        ctypes.c_int(query.shape[1]),
        ctypes.byref(kv_cache_struct(key_cache, value_cache)),
        address((query * scale).contiguous()),
        address(output),
    )
    return output
