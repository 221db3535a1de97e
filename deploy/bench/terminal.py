"""A report as tables in a terminal, and the bar while it is made."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deploy.bench.comparison import ComparedFigure, compared
from deploy.bench.figures import Figures
from deploy.bench.records import OnRecord, RequestRecord
from deploy.bench.report import Report, RunReport
from deploy.bench.wording import MEASURES, SUMMARY_COLUMNS, facts_of, is_generator_late, summary_of


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
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
        task = progress.add_task(name, total=num_requests, errors="")

        def note(record: RequestRecord) -> None:
            nonlocal num_errors
            num_errors += record.error is not None
            progress.update(task, advance=1, errors=f"{num_errors} failed" if num_errors else "")

        yield note


def print_report(console: Console, report: Report) -> None:
    """All runs, one after the other."""
    console.print(f"[bold]{escape(report.model)}[/bold] at {report.url}", highlight=False)
    for run in report.runs:
        console.print()
        _print_run(console, run)
    if len(report.runs) > 1:
        table = _table(*SUMMARY_COLUMNS)
        for run in report.runs:
            table.add_row(*map(escape, summary_of(run)))
        console.print()
        console.print(table)


def _print_run(console: Console, run: RunReport) -> None:
    figures = run.figures
    console.print(f"[bold]{escape(run.name)}[/bold]  {escape(run.load)}", highlight=False)
    console.print(_latency_table(figures))
    for name, value in facts_of(run):
        console.print(f"{name:<10}{escape(value)}", highlight=False)
    for error, count in figures.errors.items():
        console.print(f"[red]failed    {count} × {escape(error)}[/red]", highlight=False)
    if len(figures.tenants) > 1:
        console.print(_tenant_table(figures))
    if is_generator_late(figures):
        console.print(
            f"[yellow]The generator itself fell behind: the p99 of late starts is "
            f"{figures.latencies_ms['late'].p99:,.0f} ms. Give it a core, or lower the rate.[/yellow]",
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
            escape(each.name),
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


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    return table


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def print_comparison(console: Console, first: Report, second: Report) -> None:
    """Side by side, with the ratio green where the second is better."""
    comparison = compared(first, second)
    console.print(f"A  {escape(first.model)} at {first.url}, {first.started_at}", highlight=False)
    console.print(f"B  {escape(second.model)} at {second.url}, {second.started_at}", highlight=False)
    for difference in comparison.differences:
        console.print(f"[yellow]not alike: {escape(difference)}[/yellow]", highlight=False)
    for run in comparison.runs:
        table = _table(run.name, "A", "B", "B / A")
        for figure in run.figures:
            table.add_row(figure.name, _shown(figure.first), _shown(figure.second), _ratio(figure))
        console.print()
        console.print(table)
    for name in comparison.only_first:
        console.print(f"[yellow]{escape(name)} is in A only[/yellow]", highlight=False)
    for name in comparison.only_second:
        console.print(f"[yellow]{escape(name)} is in B only[/yellow]", highlight=False)


def _ratio(figure: ComparedFigure) -> str:
    if figure.ratio is None:
        return ""
    is_better = (figure.ratio > 1) is figure.is_better_high and figure.ratio != 1
    return f"[{'green' if is_better else 'default'}]{figure.ratio:.2f} ×[/]"
