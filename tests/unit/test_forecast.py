"""Expected output lengths, the peak of what runs, and how many sequences fit."""

import math
import random
import statistics

import pytest

from engine.core.forecast import OutputLengths, PeakForecast, SequenceCap
from engine.core.sequence import SequenceClass

INTERACTIVE, OFFLINE = SequenceClass.INTERACTIVE, SequenceClass.OFFLINE
BUCKET = 0.16  # lengths are right within a bucket, and buckets grow by 15 %


def lengths_of(
    *answers: int, tenant: str = "a", sequence_class: SequenceClass = INTERACTIVE
) -> OutputLengths:
    lengths = OutputLengths()
    for answer in answers:
        lengths.observe(tenant, sequence_class, answer)
    return lengths


def expected(lengths: OutputLengths, generated: int = 0, most: int = 10_000, tenant: str = "a") -> int:
    return lengths.expected_remaining(tenant, INTERACTIVE, generated, most)


def test_too_few_answers_tell_nothing_and_the_limit_decides() -> None:
    assert expected(lengths_of(*[100] * 15), most=777) == 777


def test_four_of_five_answers_end_within_what_is_expected() -> None:
    answers = list(range(100, 200))
    random.Random(0).shuffle(answers)
    assert expected(lengths_of(*answers)) == pytest.approx(180, rel=BUCKET)


def test_what_is_generated_already_is_taken_off() -> None:
    assert expected(lengths_of(*[1_000] * 20), generated=900) == pytest.approx(100, abs=1_000 * BUCKET)


def test_an_answer_past_the_short_ones_is_expected_to_be_a_long_one() -> None:
    lengths = lengths_of(*[10] * 95, *[1_000] * 5)
    assert (expected(lengths) < 15, expected(lengths, generated=20) > 900) == (True, True)


@pytest.mark.parametrize("generated", [0, 1, 50, 99, 100, 114, 115, 5_000, 2_000_000])
@pytest.mark.parametrize("most", [0, 1, 40])
def test_what_is_expected_is_at_least_one_and_within_the_limit(generated: int, most: int) -> None:
    assert 1 <= expected(lengths_of(*[100] * 20), generated=generated, most=most) <= max(1, most)


def test_no_answer_is_expected_to_end_without_another_token() -> None:
    lengths = lengths_of(*[100] * 20)
    assert all(expected(lengths, generated=generated) >= 1 for generated in range(300))


def test_answers_that_end_between_two_questions_change_the_second() -> None:
    lengths = lengths_of(*[100] * 20)
    before = expected(lengths)
    for _ in range(100):
        lengths.observe("a", INTERACTIVE, 1_000)
    assert expected(lengths) > 5 * before


def test_an_answer_longer_than_any_before_may_take_its_limit() -> None:
    assert expected(lengths_of(*[100] * 20), generated=500, most=321) == 321


def test_a_new_tenant_is_expected_to_be_like_the_others_of_its_class() -> None:
    assert expected(lengths_of(*[100] * 20), tenant="new") == pytest.approx(100, rel=BUCKET)


def test_a_tenant_is_judged_by_its_own_answers() -> None:
    lengths = lengths_of(*[100] * 200)
    for _ in range(16):
        lengths.observe("b", INTERACTIVE, 2_000)
    assert expected(lengths, tenant="b") == pytest.approx(2_000, rel=BUCKET)


def test_one_class_says_nothing_of_the_other() -> None:
    assert expected(lengths_of(*[100] * 20, sequence_class=OFFLINE), most=777) == 777


def test_recent_answers_outweigh_older_ones() -> None:
    assert expected(lengths_of(*[100] * 5_000, *[1_000] * 800)) > 900


def test_old_answers_fade() -> None:
    assert expected(lengths_of(*[1_000] * 5_000, *[100] * 800)) < 120


def test_the_tenant_unheard_of_longest_is_forgotten() -> None:
    lengths = OutputLengths(max_tenants=2)
    for tenant, answer in (("a", 100), ("b", 500), ("a", 100), ("c", 3_000)):
        for _ in range(20):
            lengths.observe(tenant, INTERACTIVE, answer)
    assert expected(lengths, tenant="a") == pytest.approx(100, rel=BUCKET)
    assert expected(lengths, tenant="b") > 2_000  # as the class


def test_preemptions_make_longer_answers_expected() -> None:
    lengths = lengths_of(*range(100, 200))
    before = expected(lengths)
    for _ in range(4):
        lengths.note_forced_preemption()
    assert (expected(lengths) > before, lengths.quantile) == (True, 0.99)


def test_caution_has_a_limit_and_fades_with_steps() -> None:
    lengths = lengths_of(*range(100, 200))
    for _ in range(100):
        lengths.note_forced_preemption()
    quantiles = []
    for _ in range(600):
        lengths.note_step()
        quantiles.append(lengths.quantile)
    assert quantiles == sorted(quantiles, reverse=True)
    assert quantiles[-1] == 0.8


def test_one_preemption_is_remembered_for_many_steps() -> None:
    lengths = lengths_of(*range(100, 200))
    lengths.note_forced_preemption()
    for _ in range(100):
        lengths.note_step()
    assert lengths.quantile == 0.85


def test_sequences_that_end_early_make_room_for_those_that_grow() -> None:
    forecast = PeakForecast(16, [(160, 16), (16, 160)])
    assert forecast.peak_blocks_with(0, 0) == 11 + 2  # when the first ends; 11 when the second does


def test_blocks_held_for_other_reasons_come_on_top() -> None:
    assert PeakForecast(16, [], base_blocks=5).peak_blocks_with(17, 16) == 5 + 3


def cap_of(*sizes: int) -> SequenceCap:
    cap = SequenceCap()
    for size in sizes:
        cap.observe(size)
    return cap


def test_too_few_ended_sequences_give_no_cap() -> None:
    assert cap_of(*[100] * 31).most_sequences(10_000) is None


def test_sequences_of_one_size_fill_the_cache() -> None:
    assert cap_of(*[100] * 32).most_sequences(1_000) == 10


def test_the_cap_leaves_room_for_chance() -> None:
    dice = random.Random(0)
    sizes = [dice.randint(50, 350) for _ in range(256)]
    most = cap_of(*sizes).most_sequences(20_000)
    mean, deviation = statistics.fmean(sizes), statistics.pstdev(sizes)
    assert most is not None
    needs = [count * mean + 1.645 * deviation * math.sqrt(count) for count in (most, most + 1)]
    assert needs[0] <= 20_000 < needs[1]


@pytest.mark.parametrize("usable_tokens", [-5, 0, 10])
def test_one_sequence_may_always_run(usable_tokens: int) -> None:
    assert cap_of(*[100] * 32).most_sequences(usable_tokens) == 1


def test_the_cap_follows_what_sequences_have_become() -> None:
    assert cap_of(*[100] * 1_000, *[1_000] * 2_000).most_sequences(100_000) == pytest.approx(100, abs=5)
