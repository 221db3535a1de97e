"""All logits of a prompt from our own model, computed in chunks through a paged cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.step import PlannedRow
from engine.models.computation import computation
from engine.models.loading import LoadedModel
from engine.runner.inputs import build_inputs
from engine.runner.kv_tensors import allocate_kv_tensors


@torch.inference_mode()
def chunked_logits(
    model: LoadedModel, token_ids: Sequence[int], *, chunk_size: int, block_size: int = 16
) -> Tensor:
    # -> [num_tokens, vocab_size]
    """The logits after every token of `token_ids`."""
    num_blocks = -(-len(token_ids) // block_size)
    caches = allocate_kv_tensors(
        model.config,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=model.precision.cache,
        device=model.device,
    )
    computed = computation(model.network, caches)
    table = tuple(reversed(range(num_blocks)))
    logits = []
    for start in range(0, len(token_ids), chunk_size):
        chunk = tuple(token_ids[start : start + chunk_size])
        row = PlannedRow(sequence_id="", token_ids=chunk, start=start, block_table=table, sampling=None)
        every_token = torch.arange(len(chunk))
        logits.append(computed.logits(build_inputs([row], caches[0].keys), every_token).clone())
    return torch.cat(logits)
