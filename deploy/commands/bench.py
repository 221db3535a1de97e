"""`sluice bench`: puts a load on any OpenAI-compatible server and tells what it took."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.bench.experiment import Experiment, carry_out
from deploy.bench.prompts import DEFAULT_VOCAB_SIZE, PromptKind, PromptMaker
from deploy.bench.report import write_json
from deploy.bench.slo import Slo, parse_slo
from deploy.bench.terminal import print_report
from deploy.bench.workload import Load, Tenant, closed_load

ALONE = "default"

app = typer.Typer(invoke_without_command=True, help="Put a load on any OpenAI-compatible server.")


@app.callback()
def bench(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="The server, with or without /v1.")] = "http://127.0.0.1:8080",
    key: Annotated[str | None, typer.Option(envvar="SLUICE_BENCH_KEY", help="Its API key.")] = None,
    model: Annotated[str | None, typer.Option(help="Without it: the first of /v1/models.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Closed loop: so many at a time.")] = 1,
    num_requests: Annotated[int, typer.Option(min=1, help="Closed loop: so many in all.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Closed loop: of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Closed loop: of each answer.")] = 64,
    seed: Annotated[int, typer.Option(help="Equal seeds make equal loads, on any server.")] = 1,
    warmup_requests: Annotated[int, typer.Option(min=0, help="Sent first, one at a time; not counted.")] = 0,
    prompt_kind: Annotated[PromptKind, typer.Option(help="Token ids, or words.")] = PromptKind.IDS,
    vocab_size: Annotated[int, typer.Option(min=8, help="Token ids are below it.")] = DEFAULT_VOCAB_SIZE,
    slo: Annotated[
        str | None,
        typer.Option(metavar="MEASURE=TIME,...", help="What goodput keeps: ttft=1500ms,itl=120ms."),
    ] = None,
    metrics_url: Annotated[
        list[str] | None, typer.Option(help="The server's Prometheus page; may be given more than once.")
    ] = None,
    request_timeout_seconds: Annotated[
        float, typer.Option(min=0.1, help="A request fails after it.")
    ] = 600.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report there.")] = None,
) -> None:
    """Puts a load on a server and tells what it took."""
    if context.invoked_subcommand is not None:
        return
    tenant = Tenant(name=ALONE, key=key)
    loads: list[Load] = [
        closed_load(
            tenant,
            concurrency=concurrency,
            num_requests=num_requests,
            num_prompt_tokens=prompt_tokens,
            num_output_tokens=output_tokens,
        )
    ]
    experiment = Experiment(
        url=url,
        tenants=[tenant],
        model=model,
        loads=loads,
        prompts=PromptMaker(seed=seed, vocab_size=vocab_size),
        prompt_kind=prompt_kind,
        request_timeout_seconds=request_timeout_seconds,
        num_warmup_requests=warmup_requests,
        metrics_urls=metrics_url or (),
        slo=_slo(slo),
    )
    report = asyncio.run(carry_out(experiment, Console(stderr=True)))
    print_report(Console(), report)
    if json_file is not None:
        write_json(report, json_file)


def _slo(text: str | None) -> Slo:
    if text is None:
        return Slo()
    try:
        return parse_slo(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--slo") from error
