"""How much prefill may join a step."""

from engine.core.draft import StepDraft
from engine.core.limits import Limits
from engine.core.predictor import StepLoad, StepTimeModel
from engine.core.sequence import Sequence
from engine.core.step import prefill_pairs
from tests.builders.sequences import sequence

LIMITS = Limits(max_num_seqs=32, max_num_batched_tokens=192, max_num_prefill_tokens=128)


def draft_with(num_decodes: int) -> StepDraft:
    """10 ms a decode row, 1 ms a prompt token, 5 us for each token that it attends to."""
    model = StepTimeModel(prefill_pair_cost=0.5)
    for index in range(200):
        rows, tokens = index % 16, 16 * (index % 5)
        pairs, context = prefill_pairs(index * 37 % 4_000, tokens), index * 97 % 1_000
        seconds = 0.01 + 0.01 * rows + 0.001 * tokens + 5e-6 * pairs + 1e-5 * context
        model.observe(StepLoad(tokens, rows, context, pairs), seconds)
    draft = StepDraft(LIMITS, model)
    draft.add_decodes([sequence(f"s{index}", num_prompt_tokens=1) for index in range(num_decodes)])
    return draft


def test_prompts_stay_within_the_time_that_decodes_leave() -> None:
    draft = draft_with(4)
    draft.keep_within(0.1, at_least=8)
    assert 40 <= draft.prefill_room <= 60


def test_decodes_that_take_too_long_alone_hold_no_prompt_back() -> None:
    draft = draft_with(20)
    draft.keep_within(0.1, at_least=8)
    assert draft.prefill_room == LIMITS.max_num_prefill_tokens


def test_offline_prompts_stop_where_a_step_takes_too_long_already() -> None:
    draft = draft_with(20)
    draft.stop_at(0.1, at_least=8)
    assert draft.prefill_room == 8


def long_prompt(num_computed_tokens: int) -> Sequence:
    found = sequence("long", num_prompt_tokens=4_000)
    found.num_computed_tokens = num_computed_tokens
    return found


def test_a_prompt_gets_fewer_tokens_into_a_step_the_more_of_it_is_computed() -> None:
    draft = draft_with(4)
    draft.keep_within(0.1, at_least=8)
    rooms = [draft.room_for(long_prompt(start)) for start in (0, 500, 3_500)]
    assert rooms[0] > 2 * rooms[1] > 4 * rooms[2] > 0


def test_what_a_chunk_attends_to_takes_time_from_the_next_one() -> None:
    draft = draft_with(4)
    draft.keep_within(0.1, at_least=8)
    before, long = draft.prefill_room, long_prompt(1_000)
    draft.add_chunk(long, 4)
    assert draft.prefill_room < before - 4 - 10


def test_a_prompt_of_any_length_moves_on_while_there_is_room() -> None:
    draft = draft_with(4)
    draft.keep_within(0.1, at_least=1)
    assert draft.room_for(long_prompt(10**9)) == 1


def test_what_is_kept_for_others_is_kept_whatever_a_prompt_attends_to() -> None:
    draft = draft_with(4)
    draft.keep_within(0.1, at_least=8)
    long = long_prompt(1_000)
    draft.add_chunk(long, draft.room_for(long, reserve=20))
    assert draft.prefill_room >= 20
    assert draft.room_for(long, reserve=draft.prefill_room) == 0


def test_nobody_minds_how_long_a_step_takes_that_nobody_reads_along() -> None:
    draft = draft_with(0)
    assert draft.room_for(long_prompt(3_000)) == LIMITS.max_num_prefill_tokens
