"""Which charts tell of a run. Pure: from the report alone."""

from collections.abc import Callable, Iterator, Sequence

from deploy.bench.charts import Chart, Point, Series
from deploy.bench.exposition import Sample
from deploy.bench.report import RequestRow, RunReport

NUM_BINS = 60
MOST_DOTS = 4_000
TONES = ("one", "two", "three")
SECONDS = "seconds into the run"


def charts_of(run: RunReport) -> list[Chart]:
    """Those for which there is something to show."""
    every = [
        _over_time(run),
        _throughput(run),
        _under_way(run),
        _percentiles(run, "Time to first token and whole request", ("ttft", "e2e")),
        _percentiles(run, "Between tokens", ("itl", "tpot", "jitter")),
        *_samples(run),
    ]
    return [chart for chart in every if any(series.points for series in chart.series)]


def _over_time(run: RunReport) -> Chart:
    rows = run.requests[:: max(1, len(run.requests) // MOST_DOTS)]
    failed = [(row.at_seconds, row.e2e_ms) for row in rows if row.error is not None]
    served = [(row.at_seconds, row.ttft_ms) for row in rows if row.error is None and row.ttft_ms is not None]
    return Chart(
        title="Time to first token, by when a request was sent",
        x_title=SECONDS,
        y_title="ms",
        series=[
            Series(name="time to first token", points=served, tone="one", style="dots"),
            Series(name="failed (until it failed)", points=failed, tone="bad", style="dots"),
        ],
    )


def _throughput(run: RunReport) -> Chart:
    """Each answer's tokens are spread evenly from its first to its last."""
    seconds = _seconds(run.requests)
    width = seconds / NUM_BINS
    bins = [0.0] * NUM_BINS
    for row in run.requests:
        if row.ttft_ms is None or width == 0:
            continue
        first = row.at_seconds + row.ttft_ms / 1_000
        last = max(row.at_seconds + row.e2e_ms / 1_000, first + 1e-9)
        for number in range(int(first / width), min(NUM_BINS, int(last / width) + 1)):
            overlap = min(last, (number + 1) * width) - max(first, number * width)
            bins[number] += row.num_completion_tokens * max(0.0, overlap) / (last - first)
    points = [((number + 0.5) * width, tokens / width) for number, tokens in enumerate(bins)] if width else []
    return Chart(
        title="Output",
        x_title=SECONDS,
        y_title="tokens per second",
        series=[Series(name="output tokens", points=points, tone="two")],
    )


def _under_way(run: RunReport) -> Chart:
    return Chart(
        title="Requests under way",
        x_title=SECONDS,
        y_title="requests",
        series=[Series(name="sent and not ended", points=list(_staircase(run.requests)), tone="three")],
    )


def _staircase(rows: Sequence[RequestRow]) -> Iterator[Point]:
    changes = [(row.at_seconds, 1) for row in rows]
    changes += [(row.at_seconds + row.e2e_ms / 1_000, -1) for row in rows]
    count = 0
    for at, change in sorted(changes):
        yield at, count
        count += change
        yield at, count


def _percentiles(run: RunReport, title: str, measures: Sequence[str]) -> Chart:
    return Chart(
        title=title,
        x_title="percentile of requests" if "e2e" in measures else "percentile",
        y_title="ms",
        series=[
            Series(name=measure, points=list(enumerate(run.curves_ms.get(measure, ()))), tone=tone)
            for measure, tone in zip(measures, TONES, strict=False)
        ],
    )


def _samples(run: RunReport) -> Iterator[Chart]:
    def series(name: str, tone: str, value: Callable[[Sample], float | None], factor: float = 1.0) -> Series:
        seen = [(sample.at_seconds, value(sample)) for sample in run.samples]
        points = [(at, factor * number) for at, number in seen if number is not None]
        return Series(name=name, points=points, tone=tone)

    yield Chart(
        title="KV cache",
        x_title=SECONDS,
        y_title="% used",
        series=[series("used", "one", lambda sample: sample.kv_utilization, 100)],
    )
    yield Chart(
        title="Resident memory of the server",
        x_title=SECONDS,
        y_title="MiB",
        series=[series("resident", "two", lambda sample: sample.resident_bytes, 2**-20)],
    )
    yield Chart(
        title="Requests inside the server",
        x_title=SECONDS,
        y_title="requests",
        series=[
            series("running", "one", lambda sample: sample.num_running),
            series("waiting", "two", lambda sample: sample.num_waiting),
        ],
    )


def _seconds(rows: Sequence[RequestRow]) -> float:
    return max((row.at_seconds + row.e2e_ms / 1_000 for row in rows), default=0.0)
