"""Real models under a real scheduler: a greedy answer is that of its prompt alone, whatever else happens.

The tiny model runs through many histories; the default one shows that its size changes nothing.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.scheduler import Scheduler
from engine.core.sequence import GenerationParams, Sequence, SequenceClass
from engine.models.loading import LoadedModel, load_model
from engine.runner.model_runner import ModelRunner
from tests.builders.model_logits import chunked_logits
from tests.builders.pressure import expect_short_answers
from tests.builders.prompts import varied_prompt_ids
from tests.builders.tiny_llama import write_tiny_llama

NUM_BLOCKS, BLOCK_SIZE = 192, 4
TOLERANCE = 1e-3
CHOSEN = (0, 6, 7, 9, 19)  # of the varied prompts: two begin alike, one is long
LIMITS = Limits(
    max_num_seqs=8,
    max_num_batched_tokens=160,
    max_num_prefill_tokens=128,
    max_model_len=256,
    max_output_len=64,
    prefill_chunk_size=128,
    kv_cache_utilization_limit=1.0,
)

Prompts = list[list[int]]
Disturbance = Callable[[Scheduler, int], None]


@dataclass(frozen=True)
class Subject:
    """A model, what it is asked, and what it answers to each prompt alone."""

    model: LoadedModel
    runner: ModelRunner
    prompts: Prompts
    max_tokens: int
    num_histories: int
    alone: Prompts

    @property
    def tight_num_blocks(self) -> int:
        """Blocks for the longest prompt and its answer, and hardly more: not for all of them together."""
        longest = max(len(prompt) for prompt in self.prompts) + self.max_tokens
        return -(-longest // BLOCK_SIZE) + 1


@pytest.fixture(scope="module", params=["tiny", pytest.param("default", marks=pytest.mark.model)])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    num_threads = torch.get_num_threads()
    yield subject_named(request, tmp_path_factory)
    torch.set_num_threads(num_threads)


def subject_named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    if request.param == "tiny":
        directory = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
        beginning = list(range(60, 70))
        prompts = [[20, *beginning], [*beginning, 5, 6], [*beginning, 7], [9], list(range(3, 63))]
        return subject_of(directory, prompts, max_tokens=24, num_histories=8)
    directory = request.getfixturevalue("default_model_dir")
    varied = varied_prompt_ids(directory)
    return subject_of(directory, [varied[index] for index in CHOSEN], max_tokens=12, num_histories=1)


def subject_of(directory: Path, prompts: Prompts, *, max_tokens: int, num_histories: int) -> Subject:
    model = load_model(directory, dtype="float32", device="cpu")
    runner = ModelRunner(model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_threads=1)
    subject = Subject(model, runner, prompts, max_tokens, num_histories, alone=[])
    for index, prompt in enumerate(prompts):
        engine = scheduler()
        only = asking(f"alone{index}", prompt, max_tokens=max_tokens)
        assert engine.submit(only, 0.0) is None
        run(engine, runner)
        subject.alone.append(output(only))
    return subject


def scheduler(*, num_blocks: int = NUM_BLOCKS, **changes: object) -> Scheduler:
    return Scheduler(
        limits=replace(LIMITS, **changes),  # type: ignore[arg-type]  # names are checked by replace
        kv_cache=KvCache(num_blocks=num_blocks, block_size=BLOCK_SIZE),
        vocab_size=49_152,
    )


def asking(
    id: str, prompt: list[int], *, max_tokens: int, tenant: str = "a", namespace: bytes = b""
) -> Sequence:
    return Sequence(
        id=id,
        trace_id="",
        owner=None,
        tenant=tenant,
        sequence_class=SequenceClass.INTERACTIVE,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        params=GenerationParams(temperature=0.0, max_tokens=max_tokens),
        arrived_at=0.0,
        deadline=1e9,
        cache_namespace=namespace,
    )


def submitted(
    engine: Scheduler, subject: Subject, *, name: str = "a", namespace: bytes = b""
) -> list[Sequence]:
    """Asks everything at once."""
    asked = [
        asking(f"{name}{index}", prompt, max_tokens=subject.max_tokens, namespace=namespace)
        for index, prompt in enumerate(subject.prompts)
    ]
    for each in asked:
        assert engine.submit(each, 0.0) is None
    return asked


def run(engine: Scheduler, runner: ModelRunner, disturb: Disturbance = lambda engine, step: None) -> None:
    """Steps until nothing is left; something may happen before each step."""
    for number in range(2000):
        disturb(engine, number)
        plan = engine.plan_step(0.0)
        if plan is None:
            assert not engine.has_work
            return
        engine.apply(plan, runner.collect(runner.launch(plan)), 0.0)
    raise AssertionError("still busy")


def output(sequence: Sequence) -> list[int]:
    return sequence.token_ids[sequence.num_prompt_tokens :]


def assert_equal(asked: list[Sequence], subject: Subject) -> None:
    """Token by token; they may part only where the model itself all but tossed a coin."""
    for each, expected in zip(asked, subject.alone, strict=True):
        given = output(each)
        assert len(given) == len(expected)
        if given == expected:
            continue
        parting = next(
            index for index, pair in enumerate(zip(given, expected, strict=True)) if len(set(pair)) > 1
        )
        text = each.token_ids[: each.num_prompt_tokens + parting]
        logits = chunked_logits(subject.model, text, chunk_size=len(text))[-1]
        best, second = logits.topk(2).values.tolist()
        assert best - second <= TOLERANCE, f"{each.id} parts at token {parting}, margin {best - second:.2e}"


def test_text_is_that_of_the_prompt_alone_in_chunks_beside_others(subject: Subject) -> None:
    engine = scheduler(prefill_chunk_size=7, max_num_prefill_tokens=40)
    asked = submitted(engine, subject)
    run(engine, subject.runner)
    assert_equal(asked, subject)


def test_text_is_that_of_the_prompt_alone_after_preemption(subject: Subject) -> None:
    engine = scheduler(num_blocks=subject.tight_num_blocks, prefill_chunk_size=32)
    expect_short_answers(engine)
    asked = submitted(engine, subject)
    run(engine, subject.runner)
    assert sum(each.num_preemptions for each in asked) > 0
    assert sum(each.num_recomputed_tokens for each in asked) > 0
    assert_equal(asked, subject)


def test_text_is_that_of_the_prompt_alone_when_its_beginning_is_found_in_the_cache(subject: Subject) -> None:
    engine = scheduler()
    first = submitted(engine, subject, name="first", namespace=b"a")
    run(engine, subject.runner)
    again = submitted(engine, subject, name="again", namespace=b"a")
    run(engine, subject.runner)
    assert sum(each.num_cached_tokens for each in first) > 0  # two of them begin alike
    assert all(each.num_cached_tokens >= each.num_prompt_tokens - BLOCK_SIZE for each in again)
    assert_equal(first, subject)
    assert_equal(again, subject)


def test_text_is_that_of_the_prompt_alone_among_cancels_and_changes_of_limits_in_a_full_cache(
    subject: Subject,
) -> None:
    num_preemptions = 0
    for seed in range(subject.num_histories):
        others = Others(subject.prompts, random.Random(seed))
        engine = scheduler(num_blocks=subject.tight_num_blocks, prefill_chunk_size=16)
        expect_short_answers(engine)
        asked = submitted(engine, subject, namespace=b"a")
        run(engine, subject.runner, others.disturb)
        engine.check_integrity()
        assert_equal(asked, subject)
        num_preemptions += sum(each.num_preemptions for each in asked)
    assert num_preemptions > 0


class Others:
    """Requests that come and are cancelled while limits change, by chance."""

    def __init__(self, prompts: Prompts, rng: random.Random) -> None:
        self._prompts = prompts
        self._rng = rng
        self._asked: list[Sequence] = []

    def disturb(self, engine: Scheduler, step: int) -> None:
        """What happens before a step."""
        rng = self._rng
        if step < 25 and rng.random() < 0.5:
            self._ask(engine, f"other{step}")
        live = [each for each in engine.sequences() if each in self._asked]
        if live and rng.random() < 0.4:
            engine.cancel(rng.choice(live))
        if rng.random() < 0.3:
            limits = replace(
                LIMITS,
                max_num_seqs=rng.randint(1, 8),
                prefill_chunk_size=rng.choice([3, 16, 64]),
                max_num_prefill_tokens=rng.choice([8, 48]),
            )
            assert engine.set_limits(limits) == []

    def _ask(self, engine: Scheduler, id: str) -> None:
        prompt = self._rng.choice(self._prompts)[: self._rng.randint(1, 20)]
        namespace = self._rng.choice([b"a", b"b"])
        other = asking(id, prompt, max_tokens=12, tenant="b", namespace=namespace)
        assert engine.submit(other, 0.0) is None
        self._asked.append(other)
