"""Sequences and schedulers for tests of the core."""

from collections.abc import Mapping

from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.outcome import Outcome, Refusal
from engine.core.scheduler import Scheduler
from engine.core.sequence import GenerationParams, Sequence, SequenceClass
from engine.core.step import PlannedRow, StepPlan, StepResult
from engine.runner.scripted_runner import ScriptedRunner, letters

VOCAB_SIZE = 200
FIRST_LETTER = 97


def sequence(
    id: str = "s",
    *,
    tenant: str = "tenant",
    num_prompt_tokens: int = 4,
    max_tokens: int = 4,
    arrived_at: float = 0.0,
    deadline: float = 1e9,
    offline: bool = False,
    **params: object,
) -> Sequence:
    """A sequence whose prompt is 1, 2, 3, ..."""
    return Sequence(
        id=id,
        trace_id="trace",
        owner=None,
        tenant=tenant,
        sequence_class=SequenceClass.OFFLINE if offline else SequenceClass.INTERACTIVE,
        token_ids=[1 + index % 50 for index in range(num_prompt_tokens)],
        num_prompt_tokens=num_prompt_tokens,
        params=GenerationParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
        arrived_at=arrived_at,
        deadline=deadline,
    )


def scheduler(*, num_blocks: int = 64, block_size: int = 4, **limits: object) -> Scheduler:
    """A scheduler over a small cache."""
    defaults: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_num_prefill_tokens": 12,
        "max_model_len": 128,
        "max_output_len": 64,
        "prefill_chunk_size": 8,
        "kv_cache_utilization_limit": 0.9,
    }
    return Scheduler(
        limits=Limits(**{**defaults, **limits}),  # type: ignore[arg-type]
        kv_cache=KvCache(num_blocks=num_blocks, block_size=block_size),
        vocab_size=VOCAB_SIZE,
    )


def submit(scheduler: Scheduler, sequence: Sequence) -> Refusal | None:
    """Hands a sequence in at the time it arrived."""
    return scheduler.submit(sequence, sequence.arrived_at)


def compute(plan: StepPlan) -> StepResult:
    """What the scripted runner makes of a plan: letters by position, whatever the batch."""
    runner = ScriptedRunner(letters(FIRST_LETTER, 26))
    return runner.collect(runner.launch(plan))


class SimulatedCache:
    """Remembers which text was written to which slot, and by whom; every row must see its own, lawfully.

    A row may see what its own tenant wrote under the same namespace, and what lies in the shared head of its
    prompt if the writer's prompt had it in the same shared namespace.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[int, int], tuple[int, Sequence]] = {}

    def run(self, plan: StepPlan, sequences: Mapping[str, Sequence]) -> dict[str, list[int]]:
        """Writes the plan's rows; returns all that each row's attention sees."""
        for row in plan.rows:
            writer = sequences[row.sequence_id]
            for position, token_id in enumerate(row.token_ids, start=row.start):
                self._slots[self._slot(row, position)] = token_id, writer
        return {row.sequence_id: self._seen(row, sequences[row.sequence_id]) for row in plan.rows}

    def _seen(self, row: PlannedRow, reader: Sequence) -> list[int]:
        end = row.start + len(row.token_ids)
        assert len(row.block_table) * self._block_size >= end, f"{row.sequence_id} has no slot for its text"
        seen: list[int] = []
        for position in range(end):
            token_id, writer = self._slots[self._slot(row, position)]
            assert writer is reader or _may_share(reader, writer, position), (
                f"{reader.id} reads position {position} of {writer.id}"
            )
            seen.append(token_id)
        assert seen == reader.token_ids[:end], f"{row.sequence_id} reads another text's cache"
        return seen

    def _slot(self, row: PlannedRow, position: int) -> tuple[int, int]:
        return row.block_table[position // self._block_size], position % self._block_size


def _may_share(reader: Sequence, writer: Sequence, position: int) -> bool:
    if position < min(reader.num_shared_tokens, writer.num_shared_tokens):
        return reader.shared_namespace == writer.shared_namespace != b""
    return reader.tenant == writer.tenant and reader.cache_namespace == writer.cache_namespace != b""


def expected_output(sequence: Sequence) -> list[int]:
    """The output that `compute` gives an undisturbed sequence of this prompt and length."""
    start = sequence.num_prompt_tokens
    return [FIRST_LETTER + position % 26 for position in range(start, start + sequence.params.max_tokens)]


def step(scheduler: Scheduler, now: float = 0.0) -> tuple[StepPlan | None, list[Outcome]]:
    """Plans, computes and applies one step."""
    plan = scheduler.plan_step(now)
    return plan, [] if plan is None else scheduler.apply(plan, compute(plan), now)


def run_until_idle(scheduler: Scheduler, max_steps: int = 10_000) -> list[Outcome]:
    """Steps until nothing is left; fails when work remains that is never computed."""
    outcomes: list[Outcome] = []
    for _ in range(max_steps):
        plan, brought = step(scheduler)
        outcomes.extend(brought)
        if plan is None:
            assert not scheduler.has_work, "work is waiting that no step takes up"
            return outcomes
    raise AssertionError(f"still busy after {max_steps} steps")
