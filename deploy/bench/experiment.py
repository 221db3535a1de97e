"""All runs of one command on one server: check that it can serve, warm it, carry out each load, report."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from rich.console import Console

from deploy.bench.figures import figures_of
from deploy.bench.prompts import PromptKind, PromptMaker
from deploy.bench.report import VERSION, Report, RunReport, run_report
from deploy.bench.runner import Asking, Run
from deploy.bench.sampler import sampling
from deploy.bench.server import Server, check, connected
from deploy.bench.slo import Slo
from deploy.bench.terminal import progress_bar
from deploy.bench.workload import Load, OpenLoad, Tenant, closed_load, description, tenants_of

WARM_UP = "warm-up"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is asked of which server. `model` None is the first that it names.

    `num_warmup_requests` go first, one at a time, with prompts of their own; they are in no figure.
    """

    url: str
    tenants: Sequence[Tenant]
    model: str | None
    loads: Sequence[Load]
    prompts: PromptMaker
    prompt_kind: PromptKind
    is_exact: bool = True
    request_timeout_seconds: float = 600.0
    num_warmup_requests: int = 0
    metrics_urls: Sequence[str] = ()
    slo: Slo = field(default_factory=Slo)
    settings: Mapping[str, str] = field(default_factory=dict)


async def carry_out(experiment: Experiment, console: Console) -> Report:
    """All runs in turn; `console` shows a bar. Raises Failure when the server cannot serve at all."""
    started_at = datetime.now(UTC)
    async with connected(experiment.url) as server:
        model = await check(server, experiment.tenants, experiment.model)
        asking = _asking(experiment, model)
        await _warm_up(server, experiment, asking)
        runs = [await _run(server, experiment, asking, load, console) for load in experiment.loads]
    return Report(
        version=VERSION,
        url=experiment.url,
        model=model,
        started_at=started_at.isoformat(timespec="seconds"),
        seed=experiment.prompts.seed,
        settings=experiment.settings,
        slo_ms=experiment.slo.bounds_ms,
        runs=runs,
    )


async def _run(
    server: Server, experiment: Experiment, asking: Asking, load: Load, console: Console
) -> RunReport:
    async with AsyncExitStack() as stack:
        on_record = stack.enter_context(progress_bar(console, load.name, load.num_requests))
        run = Run(server, asking, on_record)
        samples = await stack.enter_async_context(sampling(server, experiment.metrics_urls, run.seconds))
        await run.carry_out(load)
    figures = figures_of(
        run.records,
        slo=experiment.slo,
        weights={tenant.name: tenant.weight for tenant in tenants_of(load)},
        planned_seconds=load.duration_seconds if isinstance(load, OpenLoad) else None,
    )
    return run_report(load.name, description(load), figures, run.records, samples)


async def _warm_up(server: Server, experiment: Experiment, asking: Asking) -> None:
    """With another seed: what it leaves in a prefix cache helps no request that counts."""
    if experiment.num_warmup_requests == 0:
        return
    longest = max(
        (conversation.turns[0] for load in experiment.loads for conversation in load.conversations),
        key=lambda turn: turn.num_new_tokens,
        default=None,
    )
    if longest is None:
        return
    load = closed_load(
        experiment.tenants,
        concurrency=1,
        num_requests=experiment.num_warmup_requests,
        num_prompt_tokens=longest.num_new_tokens,
        num_output_tokens=min(longest.num_output_tokens, 16),
    )
    prompts = replace(asking.prompts, purpose=WARM_UP)
    await Run(server, replace(asking, prompts=prompts), lambda record: None).carry_out(load)


def _asking(experiment: Experiment, model: str) -> Asking:
    return Asking(
        model=model,
        prompts=experiment.prompts,
        prompt_kind=experiment.prompt_kind,
        is_exact=experiment.is_exact,
        timeout_seconds=experiment.request_timeout_seconds,
    )
