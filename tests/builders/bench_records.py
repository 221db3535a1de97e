"""Records and reports of a bench, with everything filled in that a test does not care about."""

from typing import Any

from deploy.bench.figures import figures_of
from deploy.bench.records import RequestRecord
from deploy.bench.report import VERSION, Report, RunReport, run_report
from deploy.bench.slo import Slo


def request_record(**changes: Any) -> RequestRecord:
    """Sent at 1 s, first text at 1.5 s, then one each 0.1 s: three tokens in all."""
    values: dict[str, Any] = {
        "tenant": "acme",
        "due_at": 1.0,
        "started_at": 1.0,
        "ended_at": 1.75,
        "token_times_at": (1.5, 1.6, 1.7),
        "num_prompt_tokens": 10,
        "num_completion_tokens": 3,
    }
    return RequestRecord(**values | changes)


def report_run(
    *records: RequestRecord, name: str = "mixed", slo: Slo | None = None, **changes: Any
) -> RunReport:
    """One run of these records, or of one ordinary request."""
    all_records = records or (request_record(),)
    weights = {record.tenant: 1.0 for record in all_records}
    figures = figures_of(all_records, slo=slo or Slo(), weights=weights)
    return run_report(name, changes.get("load", "a load"), figures, all_records, changes.get("samples", ()))


def bench_report_of(*runs: RunReport, **changes: Any) -> Report:
    """A report of these runs."""
    values: dict[str, Any] = {
        "version": VERSION,
        "url": "http://127.0.0.1:8080",
        "model": "tiny",
        "started_at": "2026-01-05T12:00:00+00:00",
        "seed": 1,
        "settings": {"prompts": "ids"},
        "slo_ms": {},
        "runs": list(runs),
    }
    return Report(**values | changes)
