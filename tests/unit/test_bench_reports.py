"""What a bench shows: the server's own figures, plots, the page, comparisons."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from deploy.bench.charts import Chart, Series, drawn
from deploy.bench.comparison import compared
from deploy.bench.exposition import Sample, sample_of
from deploy.bench.figures import figures_of
from deploy.bench.page import page_of
from deploy.bench.plots import charts_of
from deploy.bench.report import read_json, run_report, write_json
from deploy.bench.slo import Slo
from deploy.bench.terminal import print_comparison, print_report
from deploy.failure import Failure
from tests.builders.bench_records import bench_report_of, report_run, request_record

OURS = """# HELP sluice_engine_kv_cache_usage_perc Used.
# TYPE sluice_engine_kv_cache_usage_perc gauge
sluice_engine_kv_cache_usage_perc 0.5
sluice_engine_num_requests_running{request_class="interactive"} 3.0
sluice_engine_num_requests_running{request_class="offline"} 1.0
sluice_engine_num_requests_waiting_by_reason{reason="kv"} 9.0
sluice_engine_step_seconds_bucket{le="0.1"} 7.0
"""
THEIRS = """vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.75
vllm:num_requests_waiting{engine="0"} 2.0
process_resident_memory_bytes 3e+06
"""


def shown(print_it: Callable[..., None], *arguments: object) -> str:
    page = StringIO()
    print_it(Console(width=200, file=page), *arguments)
    return page.getvalue()


# --- the server's page -------------------------------------------------------------------------------------


def test_the_same_figures_are_read_from_either_server() -> None:
    assert sample_of([OURS], 2.0) == Sample(at_seconds=2.0, kv_utilization=0.5, num_running=4)
    assert sample_of([THEIRS], 2.0) == Sample(
        at_seconds=2.0, kv_utilization=0.75, num_waiting=2, resident_bytes=3e6
    )


def test_pages_of_several_processes_are_one_sample() -> None:
    assert sample_of([OURS, THEIRS, THEIRS], 0.0) == Sample(
        at_seconds=0.0, kv_utilization=0.75, num_running=4, num_waiting=4, resident_bytes=6e6
    )


def test_a_page_without_such_figures_tells_nothing() -> None:
    assert sample_of(["<html>"], 1.0) == Sample(at_seconds=1.0)


# --- plots -------------------------------------------------------------------------------------------------


def test_a_chart_is_drawn_from_zero_within_its_frame() -> None:
    series = Series(name="a", points=[(0, 0), (10, 5)], tone="one")
    drawing = drawn(Chart(title="t", x_title="x", y_title="y", series=[series]))
    assert drawing.strokes[0].path == "M58 180L448 10"
    assert [tick.label for tick in drawing.x_ticks] == ["0", "2", "4", "6", "8", "10"]


def test_only_what_was_seen_is_plotted() -> None:
    titles = [chart.title for chart in charts_of(report_run())]
    assert "KV cache" not in titles
    with_samples = report_run(samples=[Sample(at_seconds=0.0, kv_utilization=0.5)])
    assert "KV cache" in [chart.title for chart in charts_of(with_samples)]


def test_the_throughput_plot_holds_all_tokens() -> None:
    run = report_run(request_record(), request_record(num_completion_tokens=40))
    [output] = [chart for chart in charts_of(run) if chart.title == "Output"]
    (first, _), (second, _), *_ = output.series[0].points
    assert sum(rate * (second - first) for _, rate in output.series[0].points) == pytest.approx(43)


# --- the page and the terminal -----------------------------------------------------------------------------


def test_what_a_server_says_is_text_on_the_page() -> None:
    run = report_run(request_record(error="<script>alert(1)</script>"), request_record())
    page = page_of(bench_report_of(run, model="<b>model</b>"))
    assert "<script>" not in page
    assert "<b>model" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_what_a_server_says_is_text_in_the_terminal() -> None:
    run = report_run(request_record(error="[bold]x[/nonsense]"), request_record(tenant="[red]t"))
    output = shown(print_report, bench_report_of(run))
    assert "[bold]x[/nonsense]" in output
    assert "[red]t" in output


@pytest.mark.parametrize(("due_at", "is_told"), [(1.0, False), (0.5, True)])
def test_a_generator_that_fell_behind_says_so(due_at: float, is_told: bool) -> None:
    report = bench_report_of(report_run(request_record(due_at=due_at)))
    assert ("generator itself fell behind" in shown(print_report, report)) is is_told
    assert ("generator itself fell behind" in page_of(report)) is is_told


def test_a_run_in_which_all_failed_can_be_shown() -> None:
    report = bench_report_of(report_run(request_record(error="timeout", token_times_at=())))
    assert "1 × timeout" in shown(print_report, report)
    assert "timeout" in page_of(report)


def test_several_loads_are_summed_up_in_one_table() -> None:
    report = bench_report_of(report_run(name="spike"), report_run(name="agent"))
    assert "good/s" in shown(print_report, report)
    assert '<a href="#run-agent">' in page_of(report)
    assert "good/s" not in shown(print_report, bench_report_of(report_run()))


def test_a_run_without_any_request_can_be_shown() -> None:
    nothing = figures_of([], slo=Slo(), weights={})
    report = bench_report_of(run_report("mixed", "a load", nothing, [], []))
    assert "0 of 0" in shown(print_report, report)
    assert "0 of 0" in page_of(report)


# --- files -------------------------------------------------------------------------------------------------


def test_a_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    report = bench_report_of(report_run(samples=[Sample(at_seconds=0.0, kv_utilization=0.5)]))
    write_json(report, tmp_path / "a.json")
    again = read_json(tmp_path / "a.json")
    assert again.runs[0].figures.latencies_ms == report.runs[0].figures.latencies_ms
    assert again.runs[0].samples == report.runs[0].samples


def test_a_report_of_another_version_is_refused(tmp_path: Path) -> None:
    write_json(bench_report_of(version=99), tmp_path / "a.json")
    with pytest.raises(Failure, match="is a report of version 99"):
        read_json(tmp_path / "a.json")


# --- comparisons -------------------------------------------------------------------------------------------


def test_a_ratio_is_the_second_over_the_first() -> None:
    slow = request_record(token_times_at=(2.0, 2.1, 2.2), ended_at=2.25)
    comparison = compared(bench_report_of(report_run()), bench_report_of(report_run(slow)))
    [run] = comparison.runs
    ratios = {figure.name: figure.ratio for figure in run.figures}
    assert ratios["ttft p50 ms"] == pytest.approx(2)
    assert ratios["failed requests"] is None, "nothing failed in the first"
    assert comparison.differences == []


def test_loads_that_differ_are_pointed_out() -> None:
    first = bench_report_of(report_run(), seed=1)
    second = bench_report_of(report_run(load="another"), seed=2, settings={"prompts": "text"})
    assert compared(first, second).differences == [
        "seed 1 and 2",
        "prompts ids and text",
        "mixed is another load",
    ]


def test_runs_of_one_report_only_are_named() -> None:
    first = bench_report_of(report_run(name="spike"), report_run(name="mixed"))
    second = bench_report_of(report_run(name="agent"), report_run(name="mixed"))
    comparison = compared(first, second)
    assert (comparison.only_first, comparison.only_second) == (["spike"], ["agent"])
    output = shown(print_comparison, first, second)
    assert "spike is in A only" in output
    assert "1.00 ×" in output
