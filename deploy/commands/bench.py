"""`sluice bench`: puts a load on any OpenAI-compatible server and tells what it took."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from deploy.bench import ledger
from deploy.bench.arrivals import Arrivals
from deploy.bench.lengths import LengthShape
from deploy.bench.page import page_of
from deploy.bench.prompts import DEFAULT_VOCAB_SIZE, PromptKind, PromptMaker
from deploy.bench.report import read_json, write_json, write_text
from deploy.bench.resampling import resampled_load
from deploy.bench.scenarios import Scenario, Settings, open_load
from deploy.bench.slo import Slo, parse_slo
from deploy.bench.tenants import parse_tenant
from deploy.bench.terminal import print_comparison, print_report
from deploy.bench.traces import TraceScale, TraceUnreadable, read_trace, trace_load
from deploy.bench.workload import Load, Tenant, closed_load
from deploy.commands.options import DatabaseUrl, DataDir
from deploy.commands.store_access import with_store
from deploy.configuration import DEFAULT_DATA_DIR
from deploy.failure import Failure

ALONE: Final = "default"
ALL: Final = "all"
SCENARIO_NAMES: Final = (*(each.value for each in Scenario), ALL)
DEFAULT_RATE: Final = 1.0
DEFAULT_DURATION_SECONDS: Final = 30.0
LOAD, CLOSED, OPEN, SERVER, OUTPUT = "The load", "Closed loop", "Open loop", "The server", "What is written"

app = typer.Typer(add_completion=False, invoke_without_command=True)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The options that make a load, as they were typed; None is one that was not."""

    tenants: Sequence[Tenant]
    scenarios: Sequence[str]
    trace: Path | None
    from_usage: bool
    concurrency: int | None
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    rate: float | None
    duration: float | None
    arrivals: Arrivals
    lengths: LengthShape
    length_scale: float
    time_scale: float
    max_model_len: int
    seed: int
    data_dir: Path
    database_url: str | None


@app.callback()
def bench(
    context: typer.Context,
    url: Annotated[
        str, typer.Option(help="With or without /v1.", rich_help_panel=SERVER)
    ] = "http://127.0.0.1:8080",
    key: Annotated[
        str | None, typer.Option(envvar="SLUICE_BENCH_KEY", help="The API key.", rich_help_panel=SERVER)
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=KEY[:WEIGHT]",
            help="Several tenants: once for each, with its part of the load.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Without it: the first of /v1/models.", rich_help_panel=SERVER)
    ] = None,
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(help="The server's Prometheus page; may be repeated.", rich_help_panel=SERVER),
    ] = None,
    request_timeout_seconds: Annotated[
        float, typer.Option(min=0.1, help="A request fails after it.", rich_help_panel=SERVER)
    ] = 600.0,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="So many requests at a time.", rich_help_panel=CLOSED)
    ] = None,
    num_requests: Annotated[int, typer.Option(min=1, help="In all.", rich_help_panel=CLOSED)] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each prompt.", rich_help_panel=CLOSED)] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Of each answer.", rich_help_panel=CLOSED)] = 64,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"May be repeated: {', '.join(SCENARIO_NAMES)}.",
            rich_help_panel=OPEN,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay a file: Azure's CSV or Mooncake's JSON lines.", rich_help_panel=OPEN),
    ] = None,
    from_usage: Annotated[
        bool, typer.Option("--from-usage", help="Resample our own ledger.", rich_help_panel=OPEN)
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Arrivals a second [1; --from-usage: its own].", rich_help_panel=OPEN),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds [30; --trace: the whole trace].", rich_help_panel=OPEN),
    ] = None,
    arrivals: Annotated[
        Arrivals, typer.Option(help="Of scenarios.", rich_help_panel=OPEN)
    ] = Arrivals.POISSON,
    lengths: Annotated[
        LengthShape, typer.Option(help="Of scenarios.", rich_help_panel=OPEN)
    ] = LengthShape.LOGNORMAL,
    length_scale: Annotated[
        float, typer.Option(min=1e-6, help="Multiplies all lengths.", rich_help_panel=OPEN)
    ] = 1.0,
    time_scale: Annotated[
        float,
        typer.Option(min=1e-6, help="Multiplies a trace's gaps: 2 halves its rate.", rich_help_panel=OPEN),
    ] = 1.0,
    max_model_len: Annotated[
        int, typer.Option(min=2, help="Longer requests are cut to it.", rich_help_panel=OPEN)
    ] = 4096,
    seed: Annotated[
        int, typer.Option(help="Equal seeds make equal loads, on any server.", rich_help_panel=LOAD)
    ] = 1,
    warmup_requests: Annotated[
        int, typer.Option(min=0, help="Sent first, one at a time; not counted.", rich_help_panel=LOAD)
    ] = 0,
    prompt_kind: Annotated[
        PromptKind, typer.Option(help="Token ids, or words.", rich_help_panel=LOAD)
    ] = PromptKind.IDS,
    vocab_size: Annotated[
        int, typer.Option(min=8, help="Token ids are below it.", rich_help_panel=LOAD)
    ] = DEFAULT_VOCAB_SIZE,
    force_length: Annotated[
        bool,
        typer.Option(help="Ask for ignore_eos and min_tokens, or leave them out.", rich_help_panel=LOAD),
    ] = True,
    slo: Annotated[
        str | None,
        typer.Option(metavar="MEASURE=TIME,...", help="ttft=1500ms,itl=120ms", rich_help_panel=OUTPUT),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="The report for programs.", rich_help_panel=OUTPUT)
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="The report with plots.", rich_help_panel=OUTPUT)
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    database_url: DatabaseUrl = None,
) -> None:
    """Puts a load on any OpenAI-compatible server and tells what it took.

    Without --scenario, --trace or --from-usage it is a closed loop: equal requests, --concurrency at a time.
    """
    if context.invoked_subcommand is not None:
        return
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"write http://{url}", param_hint="--url")
    for file in (json_file, html_file):
        _check_folder(file)
    wanted = Wanted(
        tenants=_tenants(key, tenant or ()),
        scenarios=scenario or (),
        trace=trace,
        from_usage=from_usage,
        concurrency=concurrency,
        num_requests=num_requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        rate=rate,
        duration=duration,
        arrivals=arrivals,
        lengths=lengths,
        length_scale=length_scale,
        time_scale=time_scale,
        max_model_len=max_model_len,
        seed=seed,
        data_dir=data_dir,
        database_url=database_url,
    )
    # Here and not above: its HTTP client takes a third of a second that no other command should wait for.
    from deploy.bench.experiment import Experiment, carry_out

    experiment = Experiment(
        url=url,
        tenants=wanted.tenants,
        model=model,
        loads=_loads(wanted),
        prompts=PromptMaker(seed=seed, vocab_size=vocab_size),
        prompt_kind=prompt_kind,
        is_exact=force_length,
        request_timeout_seconds=request_timeout_seconds,
        num_warmup_requests=warmup_requests,
        metrics_urls=metrics_url or (),
        slo=_slo(slo),
        settings=_settings(wanted, prompt_kind),
    )
    report = asyncio.run(carry_out(experiment, Console(stderr=True)))
    print_report(Console(), report)
    if json_file is not None:
        write_json(report, json_file)
    if html_file is not None:
        write_text(page_of(report), html_file)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json")],
    second: Annotated[Path, typer.Argument(metavar="B.json")],
) -> None:
    """Shows two reports side by side, with ratios."""
    print_comparison(Console(), read_json(first), read_json(second))


# --- which load --------------------------------------------------------------------------------------------


def _loads(wanted: Wanted) -> list[Load]:
    ways = {
        "--scenario": bool(wanted.scenarios),
        "--trace": wanted.trace is not None,
        "--from-usage": wanted.from_usage,
        "--concurrency": wanted.concurrency is not None,
    }
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} are different loads; give one of them")
    if wanted.trace is not None:
        return [_trace_load(wanted, wanted.trace)]
    if wanted.from_usage:
        return [_usage_load(wanted)]
    if wanted.scenarios:
        return _scenario_loads(wanted)
    return [
        closed_load(
            wanted.tenants,
            concurrency=wanted.concurrency or 1,
            num_requests=wanted.num_requests,
            num_prompt_tokens=wanted.prompt_tokens,
            num_output_tokens=wanted.output_tokens,
        )
    ]


def _scenario_loads(wanted: Wanted) -> list[Load]:
    unknown = [name for name in wanted.scenarios if name not in SCENARIO_NAMES]
    if unknown:
        raise typer.BadParameter(
            f"there is no {unknown[0]}; there are {', '.join(SCENARIO_NAMES)}", param_hint="--scenario"
        )
    chosen = list(Scenario) if ALL in wanted.scenarios else [Scenario(name) for name in wanted.scenarios]
    settings = Settings(
        tenants=wanted.tenants,
        seed=wanted.seed,
        rate=wanted.rate or DEFAULT_RATE,
        duration_seconds=wanted.duration or DEFAULT_DURATION_SECONDS,
        arrivals=wanted.arrivals,
        lengths=wanted.lengths,
        length_scale=wanted.length_scale,
        max_model_len=wanted.max_model_len,
    )
    return [open_load(scenario, settings) for scenario in dict.fromkeys(chosen)]


def _trace_load(wanted: Wanted, file: Path) -> Load:
    if wanted.rate is not None:
        raise typer.BadParameter("a trace has its own rate; use --time-scale", param_hint="--rate")
    try:
        with file.open() as lines:
            rows = read_trace(lines, file.name)
    except OSError as error:
        raise Failure(f"--trace {file} cannot be read: {error.strerror}") from error
    except (TraceUnreadable, UnicodeDecodeError) as error:
        raise Failure(f"--trace: {error}") from error
    return trace_load(
        rows,
        name=file.stem,
        scale=TraceScale(length=wanted.length_scale, time=wanted.time_scale),
        duration_seconds=wanted.duration,
        tenants=wanted.tenants,
        seed=wanted.seed,
        max_model_len=wanted.max_model_len,
    )


def _usage_load(wanted: Wanted) -> Load:
    past = with_store(ledger.past_requests, data_dir=wanted.data_dir, database_url=wanted.database_url)
    return resampled_load(
        past,
        tenants=wanted.tenants,
        seed=wanted.seed,
        rate=wanted.rate,
        duration_seconds=wanted.duration or DEFAULT_DURATION_SECONDS,
        length_scale=wanted.length_scale,
        max_model_len=wanted.max_model_len,
    )


# --- what was typed ----------------------------------------------------------------------------------------


def _tenants(key: str | None, texts: Sequence[str]) -> list[Tenant]:
    if not texts:
        return [Tenant(name=ALONE, key=key)]
    if key is not None:
        raise typer.BadParameter("give --key for one tenant or --tenant for several, not both")
    try:
        tenants = [parse_tenant(text) for text in texts]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tenant") from error
    if len({tenant.name for tenant in tenants}) < len(tenants):
        raise typer.BadParameter("each tenant once", param_hint="--tenant")
    return tenants


def _slo(text: str | None) -> Slo:
    if text is None:
        return Slo()
    try:
        return parse_slo(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--slo") from error


def _check_folder(file: Path | None) -> None:
    """Before a long run, not after it."""
    if file is not None and not file.resolve().parent.is_dir():
        raise Failure(f"{file} cannot be written: there is no folder {file.resolve().parent}")


def _settings(wanted: Wanted, prompt_kind: PromptKind) -> Mapping[str, str]:
    """What readers of the report want to know of the load, and what makes two reports alike."""
    settings = {"prompts": prompt_kind.value}
    if wanted.scenarios:
        settings |= {
            "rate": f"{wanted.rate or DEFAULT_RATE:g}/s",
            "arrivals": wanted.arrivals.value,
            "lengths": wanted.lengths.value,
        }
    if wanted.trace is not None:
        settings |= {"trace": wanted.trace.name, "time scale": f"{wanted.time_scale:g}"}
    if wanted.scenarios or wanted.trace is not None or wanted.from_usage:
        settings |= {"length scale": f"{wanted.length_scale:g}"}
    return settings
