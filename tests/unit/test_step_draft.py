"""How much prefill may join a step."""

from engine.core.draft import StepDraft
from engine.core.limits import Limits
from engine.core.predictor import StepLoad, StepTimeModel
from tests.builders.sequences import sequence

LIMITS = Limits(max_num_seqs=32, max_num_batched_tokens=192, max_num_prefill_tokens=128)


def draft_with(num_decodes: int) -> StepDraft:
    """10 ms a decode row, 1 ms a prompt token."""
    model = StepTimeModel()
    for index in range(200):
        rows, tokens = index % 16, 16 * (index % 5)
        model.observe(StepLoad(tokens, rows, 0), 0.01 + 0.01 * rows + 0.001 * tokens)
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
