"""The simulator itself: it must notice a scheduler that is wrong, and count what it claims to count."""

import random
from dataclasses import replace

import pytest

from engine.core.kv_cache import KvCache
from engine.core.limits import Limits
from engine.core.scheduler import Scheduler
from engine.core.sequence import SequenceClass
from engine.core.step import PlannedRow, SamplingParams, StepPlan
from tests.builders.simulator.laws import GPU_LIKE, StepTimeLaw, StepWork, fitted
from tests.builders.simulator.models import ContextHashModel, SimulatedMachine, continuation
from tests.builders.simulator.requests import VOCAB_SIZE, Request, quantile
from tests.builders.simulator.service import ServiceMeter
from tests.builders.simulator.simulation import Record, Simulation

GREEDY = SamplingParams(temperature=0.0)
BLOCK_SIZE = 4


def requests(count: int, *, seed: int = 0, gap_seconds: float = 0.02, **facts: object) -> list[Request]:
    """Requests of all sizes from three tenants, some offline, some with a common beginning."""
    generator = random.Random(seed)
    made: list[Request] = []
    for number in range(count):
        tenant = f"tenant-{number % 3}"
        prompt = tuple(
            [7] * generator.choice([0, 12, 24]) + [generator.randrange(1, 99) for _ in range(5 + number % 30)]
        )
        made.append(
            Request(
                at=gap_seconds * number,
                tenant=tenant,
                num_prompt_tokens=len(prompt),
                num_output_tokens=generator.randrange(2, 30),
                max_tokens=40,
                sequence_class=SequenceClass.OFFLINE if number % 5 == 0 else SequenceClass.INTERACTIVE,
                cache_namespace=tenant.encode(),
                token_ids=prompt,
            )
        )
    return [replace(request, **facts) for request in made]  # type: ignore[arg-type]


def overload() -> list[Request]:
    """Offline work that fills the engine, and then people, for whom it has to get up."""
    offline = requests(30, gap_seconds=0.0, sequence_class=SequenceClass.OFFLINE)
    people = requests(50, seed=1, gap_seconds=0.01, sequence_class=SequenceClass.INTERACTIVE)
    return [*offline, *(replace(request, at=request.at + 0.1) for request in people)]


def serve(
    arrivals: list[Request], *, num_blocks: int = 64, meter: ServiceMeter | None = None, seed: int = 0
) -> Record:
    limits = Limits(
        max_num_seqs=8,
        max_num_batched_tokens=40,
        max_num_prefill_tokens=24,
        prefill_chunk_size=10,
        kv_cache_utilization_limit=1.0,
    )
    scheduler = Scheduler(
        limits=limits, kv_cache=KvCache(num_blocks=num_blocks, block_size=BLOCK_SIZE), vocab_size=VOCAB_SIZE
    )
    machine = SimulatedMachine(GPU_LIKE, num_blocks=num_blocks, block_size=BLOCK_SIZE, seed=seed)
    record = Simulation(scheduler, machine, arrivals, meter=meter).run()
    scheduler.check_integrity()
    return record


def test_text_is_that_of_an_undisturbed_run_under_pressure_on_memory() -> None:
    arrivals = overload()

    record = serve(arrivals)

    assert sum(served.num_preemptions for served in record.requests) > 0, "there was no pressure"
    assert sum(served.num_cached_tokens for served in record.requests) > 0, "no prefix was found"
    for request, served in zip(arrivals, record.requests, strict=True):
        assert list(served.output) == continuation(request.prompt(), request.num_output_tokens)


def test_two_runs_are_equal() -> None:
    first, second = (serve(requests(40)) for _ in range(2))

    assert first.steps == second.steps
    assert [served.gaps for served in first.requests] == [served.gaps for served in second.requests]


def test_a_row_that_is_given_another_texts_block_continues_differently() -> None:
    model = ContextHashModel(num_blocks=4, block_size=BLOCK_SIZE)
    prompt = (1, 2, 3, 4, 5)
    for id, tokens, table in (("right", prompt, (0, 1)), ("other", (9, 8, 7, 6, 5), (2, 3))):
        model.expect(id, 100)
        model.compute(
            StepPlan(step_id=1, rows=(PlannedRow(id, tokens[:4], 0, table, None),), num_decode_rows=0)
        )

    def last_row(table: tuple[int, ...]) -> tuple[int, ...]:
        row = PlannedRow("right", prompt[4:], 4, table, GREEDY)
        return model.compute(StepPlan(step_id=2, rows=(row,))).sampled["right"]

    assert last_row((0, 1)) == tuple(continuation(prompt, 2)[:1])
    assert last_row((2, 1)) != last_row((0, 1))


def test_latencies_add_up_to_the_time_that_a_request_took() -> None:
    record = serve(requests(40))

    for served in record.requests:
        assert served.first_token_after is not None
        assert served.latency == pytest.approx(served.first_token_after + sum(served.gaps))
        assert len(served.gaps) == served.num_output_tokens - 1


def test_service_is_the_cost_of_what_was_asked_however_often_it_was_computed() -> None:
    arrivals = [replace(request, cache_namespace=b"") for request in overload()]
    meter = ServiceMeter(weights={})

    record = serve(arrivals, meter=meter)

    assert sum(served.num_preemptions for served in record.requests) > 0, "nothing was computed twice"
    for tenant in ("tenant-0", "tenant-1", "tenant-2"):
        mine = [request for request in arrivals if request.tenant == tenant]
        expected = sum(request.num_prompt_tokens + 2 * request.num_output_tokens for request in mine)
        assert meter.service[tenant] == pytest.approx(expected)


def test_a_gap_is_measured_only_while_both_tenants_wait() -> None:
    everything_at_once = requests(60, gap_seconds=0.0, sequence_class=SequenceClass.INTERACTIVE)
    meter, idle_meter = ServiceMeter(weights={}), ServiceMeter(weights={})

    serve(everything_at_once, meter=meter)
    serve(requests(10, gap_seconds=10.0), meter=idle_meter)

    assert {gap.tenants for gap in meter.gaps()} >= {("tenant-0", "tenant-1"), ("tenant-1", "tenant-2")}
    assert idle_meter.gaps() == []


def test_a_law_is_found_again_in_the_steps_that_it_made() -> None:
    generator = random.Random(3)
    law = StepTimeLaw(
        step_seconds=0.05,
        prefill_token_seconds=0.0015,
        decode_row_seconds=0.01,
        context_token_seconds=0.0,
    )
    works = [
        StepWork(
            num_prefill_tokens=generator.randrange(100),
            num_decode_rows=generator.randrange(30),
            num_context_tokens=generator.randrange(5000),
        )
        for _ in range(50)
    ]

    found = fitted([(work, law.seconds_of(work)) for work in works])

    assert found.step_seconds == pytest.approx(law.step_seconds, rel=1e-3)
    assert found.prefill_token_seconds == pytest.approx(law.prefill_token_seconds, rel=1e-3)
    assert found.decode_row_seconds == pytest.approx(law.decode_row_seconds, rel=1e-3)
    assert found.context_token_seconds == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 5), (0.95, 10), (0.99, 10), (1.0, 10)])
def test_a_quantile_is_a_value_that_so_many_do_not_exceed(share: float, expected: float) -> None:
    assert quantile([float(value) for value in range(10, 0, -1)], share) == expected
