"""How well a model predicts a text, by the computation that serves it. Knows token ids, no words."""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from engine.core.step import PlannedRow
from engine.models.computation import Computation, computation
from engine.models.layers import LayerCache
from engine.models.loading import LoadedModel
from engine.runner.inputs import build_inputs
from engine.runner.kv_tensors import allocate_kv_tensors

BLOCK_SIZE = 16
WINDOW_SIZE = 1024
CHUNK_SIZE = 256


@torch.inference_mode()
def perplexity(
    model: LoadedModel,
    token_ids: Sequence[int],
    *,
    window_size: int = WINDOW_SIZE,
    chunk_size: int = CHUNK_SIZE,
) -> float:
    """exp of the mean loss of every token given those before it in its window, in nats.

    The text is cut into windows of `window_size` tokens, each computed in chunks as a prompt would be. The
    first token of a window has nothing before it and is not counted.
    """
    num_blocks = -(-min(window_size, len(token_ids)) // BLOCK_SIZE)
    caches = allocate_kv_tensors(
        model.config,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype=model.precision.cache,
        device=model.device,
    )
    computed = computation(model.network, caches)
    windows = [token_ids[start : start + window_size] for start in range(0, len(token_ids), window_size)]
    loss = sum(_loss(computed, caches, window, chunk_size) for window in windows)
    return math.exp(loss / (len(token_ids) - len(windows)))


def _loss(
    computed: Computation, caches: Sequence[LayerCache], window: Sequence[int], chunk_size: int
) -> float:
    """The summed loss of all tokens but the first; overwrites what the caches hold."""
    keys = caches[0].keys
    table = tuple(range(keys.shape[0]))
    loss = 0.0
    for start in range(0, len(window) - 1, chunk_size):
        # Where the window ends, its last token is only predicted, never computed.
        chunk = tuple(window[start : min(start + chunk_size, len(window) - 1)])
        row = PlannedRow(sequence_id="", token_ids=chunk, start=start, block_table=table, sampling=None)
        logits = computed.logits(build_inputs([row], keys), torch.arange(len(chunk), device=keys.device))
        following = torch.tensor(window[start + 1 : start + 1 + len(chunk)], device=keys.device)
        loss += functional.cross_entropy(logits, following, reduction="sum").item()
    return loss
