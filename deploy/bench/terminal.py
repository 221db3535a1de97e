"""A report as tables in a terminal, and the bar while it is made."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.bench.figures import Figures
from deploy.bench.records import RequestRecord
from deploy.bench.report import Report, RunReport
from deploy.bench.runner import OnRecord

MEASURES: Final = {
    "ttft": "time to first token",
    "itl": "between tokens",
    "tpot": "per output token",
    "e2e": "whole request",
    "jitter": "longest gap",
    "late": "sent late by us",
}
LATE_MS: Final = 10.0  # the p99 of late starts beyond which latencies are partly our own


@contextmanager
def progress_bar(console: Console, name: str, num_requests: int) -> Iterator[OnRecord]:
    """A bar on `console` while the block runs; call what it yields for each request that ended."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[errors]}", style="red"),
    )
    num_errors = 0
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(name, total=num_requests, errors="")

        def note(record: RequestRecord) -> None:
            nonlocal num_errors
            num_errors += record.error is not None
            progress.update(task, advance=1, errors=f"{num_errors} failed" if num_errors else "")

        yield note


def print_report(console: Console, report: Report) -> None:
    """All runs, one after the other."""
    console.print(f"[bold]{report.model}[/bold] at {report.url}", highlight=False)
    for run in report.runs:
        console.print()
        _print_run(console, run)


def _print_run(console: Console, run: RunReport) -> None:
    figures = run.figures
    console.print(f"[bold]{run.name}[/bold]  {run.load}", highlight=False)
    console.print(_latency_table(figures))
    for line in _lines(run):
        console.print(line, highlight=False)
    if len(figures.tenants) > 1:
        console.print(_tenant_table(figures))
    late = figures.latencies_ms.get("late")
    if late is not None and late.p99 > LATE_MS:
        console.print(
            f"[yellow]The generator itself fell behind: the p99 of late starts is {late.p99:.0f} ms. "
            "Give it a core of its own, or lower the rate.[/yellow]",
            highlight=False,
        )


def _latency_table(figures: Figures) -> Table:
    table = _table("ms", "mean", "p50", "p95", "p99", "max")
    for measure, title in MEASURES.items():
        seen = figures.latencies_ms.get(measure)
        if seen is not None:
            cells = (seen.mean, seen.p50, seen.p95, seen.p99, seen.max)
            table.add_row(f"{measure} · {title}", *(f"{cell:,.1f}" for cell in cells))
    return table


def _tenant_table(figures: Figures) -> Table:
    table = _table(
        "tenant", "requests", "complete", "failed", "left", "output tok/s", "ttft p95", "itl p95", "good/s"
    )
    for each in figures.tenants:
        table.add_row(
            each.name,
            str(each.num_requests),
            str(each.num_complete),
            str(each.num_errors),
            str(each.num_cancelled),
            f"{each.output_tokens_per_second:,.1f}",
            _shown(each.p95_ttft_ms),
            _shown(each.p95_itl_ms),
            f"{each.goodput_per_second:,.2f}",
        )
    return table


def _lines(run: RunReport) -> Iterator[str]:
    figures = run.figures
    yield (
        f"{figures.num_complete} of {figures.num_requests} requests complete in {figures.seconds:,.1f} s"
        + (f", {figures.num_cancelled} left as planned" if figures.num_cancelled else "")
    )
    yield (
        f"output {figures.output_tokens_per_second:,.1f} tokens/s · "
        f"total {figures.total_tokens_per_second:,.1f} tokens/s · "
        f"{figures.requests_per_second:,.2f} requests/s"
    )
    if figures.share_within_slo is not None:
        yield (
            f"goodput {figures.goodput_per_second:,.2f} requests/s · "
            f"{figures.share_within_slo:.1%} of requests within the SLO"
        )
    if figures.num_cached_tokens is not None and figures.num_prompt_tokens:
        share = figures.num_cached_tokens / figures.num_prompt_tokens
        yield f"{share:.1%} of prompt tokens came from the cache"
    if figures.jain_index is not None:
        yield f"fairness: Jain's index {figures.jain_index:.3f} of tokens by weight"
    for error, count in figures.errors.items():
        yield f"[red]failed: {count} × {error}[/red]"
    yield from _sample_lines(run)


def _sample_lines(run: RunReport) -> Iterator[str]:
    kv = [sample.kv_utilization for sample in run.samples if sample.kv_utilization is not None]
    if kv:
        yield f"KV cache: {sum(kv) / len(kv):.1%} used on average, {max(kv):.1%} at most"
    resident = [sample.resident_bytes for sample in run.samples if sample.resident_bytes is not None]
    if resident:
        yield f"server's resident memory: {max(resident) / 2**20:,.0f} MiB at most"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
