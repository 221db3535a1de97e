"""What holds for every set of records, every stream and every axis."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.bench.charts import ticks
from deploy.bench.figures import figures_of, jain_index, percentile
from deploy.bench.records import RequestRecord
from deploy.bench.slo import Slo
from deploy.bench.stream import AnswerReader

UNHURRIED = settings(deadline=None)  # a busy machine fails no test
VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    gaps = draw(st.lists(st.floats(0, 2), max_size=8))
    started_at = draw(st.floats(0, 10))
    times = [started_at + sum(gaps[: number + 1]) for number in range(len(gaps))]
    kind: dict[str, Any] = draw(
        st.sampled_from([{}, {"error": "queue_full"}, {"error": "http_500"}, {"is_cancelled": True}])
    )
    return RequestRecord(
        tenant=draw(st.sampled_from(["acme", "beta"])),
        due_at=started_at,
        started_at=started_at,
        ended_at=(times or [started_at])[-1],
        token_times_at=times,
        num_prompt_tokens=draw(st.integers(0, 100)),
        num_completion_tokens=len(times),
        **kind,
    )


@UNHURRIED
@given(values=VALUES)
def test_percentiles_rise_from_the_least_to_the_greatest(values: list[float]) -> None:
    ordered = sorted(values)
    seen = [percentile(ordered, percent) for percent in range(0, 101, 5)]
    assert (seen[0], seen[-1]) == (ordered[0], ordered[-1])
    assert all(low <= high or low == pytest.approx(high) for low, high in pairwise(seen))


@UNHURRIED
@given(values=st.lists(st.floats(0.01, 1e6), min_size=2, max_size=20), factor=st.floats(0.1, 10))
def test_jains_index_is_between_one_of_all_and_even_and_knows_no_unit(
    values: list[float], factor: float
) -> None:
    index = jain_index(values)
    assert index is not None
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([value * factor for value in values]) == pytest.approx(index)
    assert jain_index([values[0]] * len(values)) == pytest.approx(1)


@UNHURRIED
@given(history=st.lists(records(), max_size=20), bound=st.floats(0, 5_000))
def test_every_request_is_counted_once(history: list[RequestRecord], bound: float) -> None:
    figures = figures_of(history, slo=Slo(bounds_ms={"ttft": bound}), weights={"acme": 1, "beta": 2})
    num_errors = sum(figures.errors.values())
    assert figures.num_complete + figures.num_cancelled + num_errors == len(history)
    assert sum(each.num_requests for each in figures.tenants) == len(history)
    assert sum(each.num_completion_tokens for each in figures.tenants) == figures.num_completion_tokens
    assert figures.goodput_per_second <= figures.requests_per_second
    assert figures.share_within_slo is None or 0 <= figures.share_within_slo <= 1


@UNHURRIED
@given(texts=st.lists(st.text(max_size=5), max_size=6), cuts=st.lists(st.integers(0, 400), max_size=6))
def test_however_a_stream_is_cut_it_reads_the_same(texts: list[str], cuts: list[int]) -> None:
    events = "".join(_event(text) for text in texts)
    data = (events + ": ping\n\ndata: [DONE]\n\n").encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    reader = AnswerReader()
    for start, end in pairwise(places):
        reader.feed(data[start:end], 1.0)
    assert reader.text == "".join(texts)
    assert len(reader.token_times) == sum(text != "" for text in texts)
    assert reader.error is None


@UNHURRIED
@given(most=st.floats(1e-6, 1e9))
def test_ticks_are_few_and_reach_the_greatest_value(most: float) -> None:
    marks = ticks(most)
    assert 2 <= len(marks) <= 7
    assert marks[0] == 0
    assert marks[-1] >= most * (1 - 1e-9)
    assert marks[-2] < most


def _event(text: str) -> str:
    quoted = "".join(f"\\u{unit:04x}" for unit in _utf16(text))
    return f'data: {{"choices":[{{"index":0,"text":"{quoted}","finish_reason":null}}]}}\r\n\r\n'


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2)]
