"""What a bench leaves behind: one document with all runs, as it is kept in JSON and read back to compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deploy.bench.exposition import Sample
from deploy.bench.figures import MILLISECONDS, Figures, curves_ms
from deploy.bench.records import RequestRecord
from deploy.failure import Failure

VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """One request, as it is kept. `at_seconds` is its start within the run."""

    tenant: str
    at_seconds: float
    late_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    jitter_ms: float | None
    e2e_ms: float
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int | None
    error: str | None
    is_cancelled: bool


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """One load and what came of it. `curves_ms` has percentiles 0 to 100 by measure."""

    name: str
    load: str
    figures: Figures
    curves_ms: Mapping[str, Sequence[float]]
    requests: Sequence[RequestRow]
    samples: Sequence[Sample] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """All runs of one command on one server. `settings` are those that shape the load, for people."""

    version: int
    url: str
    model: str
    started_at: str
    seed: int
    settings: Mapping[str, str]
    slo_ms: Mapping[str, float]
    runs: Sequence[RunReport]


def run_report(
    name: str, load: str, figures: Figures, records: Sequence[RequestRecord], samples: Sequence[Sample]
) -> RunReport:
    """Of one run that is over."""
    return RunReport(
        name=name,
        load=load,
        figures=figures,
        curves_ms=curves_ms(records),
        requests=[_row(record) for record in sorted(records, key=lambda record: record.started_at)],
        samples=samples,
    )


def write_json(report: Report, file: Path) -> None:
    """Raises Failure where it cannot be written."""
    write_text(msgspec.json.format(msgspec.json.encode(report), indent=1).decode(), file)


def write_text(text: str, file: Path) -> None:
    """Raises Failure where it cannot be written."""
    try:
        file.write_text(text)
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}") from error


def read_json(file: Path) -> Report:
    """Raises Failure for what is no report of this version."""
    try:
        report = msgspec.json.decode(file.read_bytes(), type=Report)
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise Failure(f"{file} is no report of `sluice bench --json`: {error}") from error
    if report.version != VERSION:
        raise Failure(f"{file} is a report of version {report.version}; this command reads version {VERSION}")
    return report


def _row(record: RequestRecord) -> RequestRow:
    return RequestRow(
        tenant=record.tenant,
        at_seconds=record.started_at,
        late_ms=record.late_seconds * MILLISECONDS,
        ttft_ms=_ms(record.ttft_seconds),
        tpot_ms=_ms(record.tpot_seconds),
        jitter_ms=_ms(record.jitter_seconds),
        e2e_ms=record.e2e_seconds * MILLISECONDS,
        num_prompt_tokens=record.num_prompt_tokens,
        num_completion_tokens=record.num_completion_tokens,
        num_cached_tokens=record.num_cached_tokens,
        error=record.error,
        is_cancelled=record.is_cancelled,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MILLISECONDS
