"""The number formats that a model can be served in, and what each means for its tensors."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.errors import ModelError
from kernels import native
from kernels.linear import Weight, pack, quantise_weight

NAMES: Final = ("float32", "bfloat16", "int8")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How a model's numbers are kept. Sums are float32 in every one of them."""

    name: str
    hidden: torch.dtype
    """Of what passes from layer to layer, and of norms and biases."""

    embedding: torch.dtype
    cache: torch.dtype
    """Of keys and values."""

    is_packed: bool
    """Whether weights are packed for the native operators."""

    def weight(self, tensor: Tensor) -> Weight:
        # [out_size, in_size]
        """A linear layer's weight in this precision."""
        kept = quantise_weight(tensor) if self.name == "int8" else tensor.to(self.cache)
        return pack(kept) if self.is_packed else kept


def choose_precision(name: str, device: torch.device) -> Precision:
    """The precision that a setting names; auto is what is fast and exact enough here. Raises ModelError."""
    is_cpu = device.type == "cpu"
    has_native = is_cpu and native.library() is not None
    if name == "auto":
        name = "int8" if has_native else "float32" if is_cpu else "bfloat16"
    if name not in NAMES:
        raise ModelError(
            f"the type {name!r} is not known; choose auto, {', '.join(NAMES[:-1])} or {NAMES[-1]}"
        )
    if name == "int8" and not is_cpu:
        raise ModelError("the type 'int8' is for CPUs; choose auto, float32 or bfloat16 on a GPU")
    wide = torch.float32 if name == "float32" else torch.bfloat16
    is_wide_inside = has_native or name == "int8"
    return Precision(
        name=name,
        hidden=torch.float32 if is_wide_inside else wide,
        embedding=wide,
        cache=wide,
        is_packed=has_native,
    )
