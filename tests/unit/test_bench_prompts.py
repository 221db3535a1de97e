"""Prompts that every server and every version of Python gets alike."""

from dataclasses import replace

from deploy.bench.prompts import PromptMaker
from deploy.bench.workload import Segment

MAKER = PromptMaker(seed=1)
FOUR = [Segment(name="request 0", num_tokens=4)]


def test_a_seed_means_the_same_ids_everywhere() -> None:
    assert MAKER.ids(FOUR) == [22328, 35742, 13263, 39420]


def test_requests_seeds_and_warm_ups_share_no_prefix() -> None:
    others = [
        MAKER.ids([Segment(name="request 1", num_tokens=4)]),
        replace(MAKER, seed=2).ids(FOUR),
        replace(MAKER, purpose="warm-up").ids(FOUR),
    ]
    assert all(ids[0] != MAKER.ids(FOUR)[0] for ids in others)


def test_segments_follow_each_other() -> None:
    more = Segment(name="more", num_tokens=2)
    assert MAKER.ids([*FOUR, more]) == MAKER.ids(FOUR) + MAKER.ids([more])
