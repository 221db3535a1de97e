"""The paged cache's memory: how large a block is, how many fit, and the tensors themselves. Owns no block."""

import torch

from engine.models.config import ModelConfig
from engine.models.layers import LayerCache
from kernels.kv_write import new_pages


def kv_block_bytes(config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers, keys and values together."""
    slot_bytes = config.num_kv_heads * config.head_dim * dtype.itemsize
    return 2 * config.num_layers * block_size * slot_bytes


def num_blocks_in(budget_bytes: int, config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> int:
    """How many whole blocks fit into `budget_bytes`."""
    return budget_bytes // kv_block_bytes(config, block_size=block_size, dtype=dtype)


def allocate_kv_tensors(
    config: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[LayerCache, ...]:
    """The caches of all layers. On a CPU the system hands the memory out as blocks are first written."""
    shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
    pages = (new_pages(*shape, dtype=dtype, device=device) for _ in range(config.num_layers))
    return tuple(LayerCache(keys=keys, values=values) for keys, values in pages)
