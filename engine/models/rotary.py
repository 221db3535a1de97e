"""Rotary position embeddings: the angles of a position, with the scalings that Llama models use."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor

from engine.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class DefaultRope:
    """No scaling."""

    theta: float


@dataclass(frozen=True, kw_only=True)
class LinearRope:
    """Positions divided by `factor`."""

    theta: float
    factor: float


@dataclass(frozen=True, kw_only=True)
class Llama3Rope:
    """Long waves divided by `factor`, short ones left, those between blended."""

    theta: float
    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context_length: int


RopeParameters = DefaultRope | LinearRope | Llama3Rope


def parse_rope(parameters: Mapping[str, Any]) -> RopeParameters:
    """`rope_parameters` of a configuration; raises ModelError for a scaling that we do not compute."""
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("rotating only a part of each head (partial_rotary_factor) is not supported")
    theta = float(parameters["rope_theta"])
    kind = parameters["rope_type"]
    match kind:
        case "default":
            return DefaultRope(theta=theta)
        case "linear":
            return LinearRope(theta=theta, factor=float(parameters["factor"]))
        case "llama3":
            return Llama3Rope(
                theta=theta,
                factor=float(parameters["factor"]),
                low_frequency_factor=float(parameters["low_freq_factor"]),
                high_frequency_factor=float(parameters["high_freq_factor"]),
                original_context_length=int(parameters["original_max_position_embeddings"]),
            )
        case _:
            raise ModelError(
                f"the rope scaling {kind!r} is not supported, only 'default', 'linear' and 'llama3' are"
            )


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> Tensor:
    # -> [head_dim / 2] float32
    """Radians per position of each pair of a head's dimensions."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    match rope:
        case DefaultRope():
            return frequencies
        case LinearRope():
            return frequencies / rope.factor
        case Llama3Rope():
            return frequencies / llama3_divisors(frequencies, rope)
        case _:
            assert_never(rope)


def llama3_divisors(frequencies: Tensor, rope: Llama3Rope) -> Tensor:
    # [head_dim / 2] -> the same
    """What each frequency is divided by: 1 for short waves, `factor` for long ones, else between them."""
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_context_length / wavelengths
    span = rope.high_frequency_factor - rope.low_frequency_factor
    share_unscaled = ((turns - rope.low_frequency_factor) / span).clamp(0, 1)
    return 1 / ((1 - share_unscaled) / rope.factor + share_unscaled)


@dataclass(frozen=True)
class RotaryEmbedding:
    """Gives the rotation of each position."""

    frequencies: Tensor  # [head_dim / 2] float32

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        # positions [num_tokens] int64 -> cos, sin, each [num_tokens, head_dim] float32
        """The factors that kv_write takes: `sin` is negative in the first half of each row."""
        angles = positions.float().unsqueeze(1) * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)
