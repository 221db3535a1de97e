"""How long prompts and answers are: lognormal, or shaped like two public traces. Pure.

The Azure shapes are fitted to quantiles of the Azure LLM inference traces of 2023 (Patel et al., "Splitwise:
Efficient generative LLM inference using phase splitting", ISCA 2024; Azure Public Dataset, CC-BY 4.0).
In tokens:

    conversation (19,366 requests)  prompts p50 1,020  p90 2,734  p99 4,142, at most 14,050
                                    answers p50   129  p90   424  p99   601
    code          (8,819 requests)  prompts p50 1,469  p90 5,186  p99 7,436
                                    answers p50    13  p90    55  p99   249

Between and beyond them a length's logarithm is linear in the normal quantile: a lognormal with bends. Prompts
and answers are drawn independently of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from random import Random
from statistics import NormalDist
from typing import Final, Protocol, assert_never

_NORMAL: Final = NormalDist()
_LEAST_PROBABILITY: Final = 1e-6


class LengthShape(StrEnum):
    """What lengths look like."""

    LOGNORMAL = "lognormal"
    AZURE_CONVERSATION = "azure-conversation"
    AZURE_CODE = "azure-code"


class LengthLaw(Protocol):
    """Says which length has which place among all."""

    def quantile(self, probability: float) -> float:
        """The length that this part of all lengths, strictly between 0 and 1, does not exceed."""


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """Half of all lengths are below `median`; `sigma` is the spread of their logarithm."""

    median: float
    sigma: float

    def quantile(self, probability: float) -> float:
        """See LengthLaw."""
        return self.median * exp(self.sigma * _NORMAL.inv_cdf(probability))


@dataclass(frozen=True, kw_only=True)
class QuantileLaw:
    """Goes through (probability, length) points, at least two, both ascending; never above `most`."""

    points: Sequence[tuple[float, float]]
    most: float = float("inf")

    def quantile(self, probability: float) -> float:
        """See LengthLaw."""
        place = _NORMAL.inv_cdf(probability)
        knots = [(_NORMAL.inv_cdf(known), log(length)) for known, length in self.points]
        number = next((n for n in range(1, len(knots) - 1) if place < knots[n][0]), len(knots) - 1)
        (low, low_log), (high, high_log) = knots[number - 1], knots[number]
        return min(self.most, exp(low_log + (high_log - low_log) * (place - low) / (high - low)))


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The two laws of a load."""

    prompt: LengthLaw
    output: LengthLaw


def lengths_of(shape: LengthShape) -> Lengths:
    """The laws of a shape, in tokens, before any scale."""
    match shape:
        case LengthShape.LOGNORMAL:
            return Lengths(prompt=Lognormal(median=256, sigma=1.0), output=Lognormal(median=64, sigma=0.8))
        case LengthShape.AZURE_CONVERSATION:
            return Lengths(
                prompt=QuantileLaw(points=((0.5, 1020), (0.9, 2734), (0.99, 4142)), most=14_050),
                output=QuantileLaw(points=((0.5, 129), (0.9, 424), (0.99, 601))),
            )
        case LengthShape.AZURE_CODE:
            return Lengths(
                prompt=QuantileLaw(points=((0.5, 1469), (0.9, 5186), (0.99, 7436))),
                output=QuantileLaw(points=((0.5, 13), (0.9, 55), (0.99, 249))),
            )
        case _:
            assert_never(shape)


def draw(law: LengthLaw, scale: float, random: Random) -> int:
    """A length of at least 1."""
    probability = max(_LEAST_PROBABILITY, random.random())
    return max(1, round(law.quantile(probability) * scale))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Tokens of one request that fit a model together."""

    num_prompt_tokens: int
    num_output_tokens: int


def fitted(num_prompt_tokens: float, num_output_tokens: float, max_model_len: int) -> Sizes:
    """At least one token each; an answer takes at most half of the model's length, a prompt what is left."""
    output = max(1, min(round(num_output_tokens), max_model_len // 2))
    return Sizes(
        num_prompt_tokens=max(1, min(round(num_prompt_tokens), max_model_len - output)),
        num_output_tokens=output,
    )
