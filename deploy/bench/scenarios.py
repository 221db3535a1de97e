"""The named loads: what each does with the rate, the lengths and the patience of its clients. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from deploy.bench.arrivals import Arrivals, Phase, arrival_times, spike, steady
from deploy.bench.draws import random_for
from deploy.bench.lengths import LengthShape, draw, fitted, lengths_of
from deploy.bench.workload import Conversation, OpenLoad, Segment, Tenant, Turn

LEAST_TURNS: Final = 3
MOST_TURNS: Final = 6
THINK_MEDIAN_SECONDS: Final = 1.0
LATER_TURN_FACTOR: Final = 1 / 8  # of the first prompt's law: a question, or what a tool said
# Words are about one token each: what is built on text stays this far below the model's length.
TEXT_MARGIN: Final = 0.75


class Scenario(StrEnum):
    """What the load is like."""

    SHORT_PROMPT = "short-prompt"
    LONG_PROMPT = "long-prompt"
    SHORT_OUTPUT = "short-output"
    LONG_OUTPUT = "long-output"
    MIXED = "mixed"
    SPIKE = "spike"
    CANCEL = "cancel"
    AGENT = "agent"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How a scenario differs from the law of lengths and a steady rate."""

    prompt_factor: float = 1.0
    output_factor: float = 1.0
    has_spike: bool = False
    share_leaving: float = 0.0
    has_turns: bool = False


TRAITS: Final = {
    Scenario.SHORT_PROMPT: Traits(prompt_factor=1 / 8),
    Scenario.LONG_PROMPT: Traits(prompt_factor=4),
    Scenario.SHORT_OUTPUT: Traits(output_factor=1 / 8),
    Scenario.LONG_OUTPUT: Traits(output_factor=4),
    Scenario.MIXED: Traits(),
    Scenario.SPIKE: Traits(has_spike=True),
    Scenario.CANCEL: Traits(share_leaving=0.3),
    Scenario.AGENT: Traits(has_turns=True),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a person says of an open load. `rate` is of arrivals a second; in `agent` these are conversations.

    `length_scale` multiplies every length; what does not fit `max_model_len` is cut.
    """

    tenants: Sequence[Tenant]
    seed: int
    rate: float = 1.0
    duration_seconds: float = 30.0
    arrivals: Arrivals = Arrivals.POISSON
    lengths: LengthShape = LengthShape.LOGNORMAL
    length_scale: float = 1.0
    max_model_len: int = 4096


class _Draws:
    """One generator for each question, so that the answer to one moves no other."""

    def __init__(self, scenario: Scenario, settings: Settings) -> None:
        self.traits = TRAITS[scenario]
        self.settings = settings
        self.laws = lengths_of(settings.lengths)
        self.sizes = random_for(settings.seed, f"{scenario} sizes")
        self.leaving = random_for(settings.seed, f"{scenario} leaving")
        self.turns = random_for(settings.seed, f"{scenario} turns")


def open_load(scenario: Scenario, settings: Settings) -> OpenLoad:
    """The conversations of a scenario; equal arguments give equal ones."""
    arrivals = random_for(settings.seed, f"{scenario} arrivals")
    times = arrival_times(settings.arrivals, _phases(scenario, settings), arrivals)
    draws = _Draws(scenario, settings)
    return OpenLoad(
        name=scenario.value,
        duration_seconds=settings.duration_seconds,
        conversations=[
            Conversation(
                at_seconds=at_seconds,
                tenant=tenant,
                turns=tuple(_turns(f"{scenario} {number}", draws)),
            )
            for number, (at_seconds, tenant) in enumerate(
                zip(times, dealt(settings.tenants, len(times), settings.seed), strict=True)
            )
        ],
    )


def dealt(tenants: Sequence[Tenant], count: int, seed: int) -> list[Tenant]:
    """A tenant for each of `count` arrivals, by weight."""
    weights = [tenant.weight for tenant in tenants]
    return random_for(seed, "tenants").choices(tenants, weights, k=count)


def _phases(scenario: Scenario, settings: Settings) -> list[Phase]:
    shape = spike if TRAITS[scenario].has_spike else steady
    return shape(settings.rate, settings.duration_seconds)


def _turns(name: str, draws: _Draws) -> Iterator[Turn]:
    first = _first_turn(name, draws)
    yield first
    if draws.traits.has_turns:
        yield from _later_turns(name, first, draws)


def _first_turn(name: str, draws: _Draws) -> Turn:
    settings, traits = draws.settings, draws.traits
    room = int(settings.max_model_len * TEXT_MARGIN) if traits.has_turns else settings.max_model_len
    sizes = fitted(
        draw(draws.laws.prompt, settings.length_scale * traits.prompt_factor, draws.sizes),
        draw(draws.laws.output, settings.length_scale * traits.output_factor, draws.sizes),
        room,
    )
    leaves = draws.leaving.random() < traits.share_leaving
    return Turn(
        new_segments=(Segment(name=name, num_tokens=sizes.num_prompt_tokens),),
        num_output_tokens=sizes.num_output_tokens,
        leaves_after_tokens=draws.leaving.randint(1, sizes.num_output_tokens) if leaves else None,
    )


def _later_turns(name: str, first: Turn, draws: _Draws) -> Iterator[Turn]:
    """Until there are enough, or no more fit."""
    settings = draws.settings
    room = int(settings.max_model_len * TEXT_MARGIN) - first.num_new_tokens - first.num_output_tokens
    for number in range(1, draws.turns.randint(LEAST_TURNS, MOST_TURNS)):
        num_new = draw(draws.laws.prompt, settings.length_scale * LATER_TURN_FACTOR, draws.sizes)
        num_output = draw(draws.laws.output, settings.length_scale, draws.sizes)
        room -= num_new + num_output
        if room < 0:
            return
        yield Turn(
            new_segments=(Segment(name=f"{name} turn {number}", num_tokens=num_new),),
            num_output_tokens=num_output,
            think_seconds=THINK_MEDIAN_SECONDS * draws.turns.lognormvariate(0, 0.5),
        )
