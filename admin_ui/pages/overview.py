"""The Overview page and the stream that keeps it true: one template renders both.

Knows what an operator looks at first; the figures come from `live` and `figures`.
"""

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from admin_ui.charts import Sparkline, sparkline, stacked
from admin_ui.context import Context
from admin_ui.event_stream import StreamToken, event_stream
from admin_ui.figures import EngineView, SloLine, answering, slo_lines, totals
from admin_ui.formatting import measured, slo_name
from admin_ui.live import HISTORY_SECONDS, Snapshot
from admin_ui.page import show_page
from admin_ui.sessions import SignedIn
from engine.protocol import EngineStatus

router = APIRouter()

MAX_WAITING_ROWS: Final = 8
PARTIAL: Final = "overview/live.html"


@router.get("/")
async def overview(request: Request, context: Context, session: SignedIn) -> Response:
    """The page with the newest figures; a script then follows the stream."""
    return show_page(
        request, context, session, "overview/page.html", **overview_values(context.broadcaster.latest)
    )


@router.get("/live")
async def live(context: Context, token: StreamToken) -> Response:
    """The page's live part, rendered anew every second."""

    async def draw(snapshot: Snapshot) -> str:
        return context.renderer.render(PARTIAL, overview_values(snapshot))

    return event_stream(context, token, draw)


def overview_values(snapshot: Snapshot) -> dict[str, Any]:
    """Everything that the live part of the page shows."""
    statuses = answering(snapshot.engines)
    sums = totals(statuses)
    return {
        "engines": [_engine_values(view) for view in snapshot.engines],
        "num_answering": len(statuses),
        "num_engines": len(snapshot.engines),
        "totals": sums,
        "kv_bars": stacked((sums.kv_blocks_used, sums.kv_blocks_cached, sums.kv_blocks_free)),
        "slo": [_slo_values(line) for line in slo_lines(statuses)],
        **_charts(snapshot),
    }


def _engine_values(view: EngineView) -> dict[str, Any]:
    return {
        "view": view,
        "model": None if view.description is None else view.description.model,
        "limits": None if view.status is None else limit_rows(view),
        "waiting": [] if view.status is None else waiting_rows(view.status),
        "moves": [] if view.status is None else view.status.guardrails.events[:-4:-1],
    }


def waiting_rows(status: EngineStatus) -> list[tuple[str, str]]:
    """Who waits in an engine, and for what: the words of the API, the metrics and the log."""
    names = {row.tenant: row.name for row in status.tenants}
    return [
        (
            f"{names.get(row.tenant, row.tenant)}, {row.request_class.value}",
            f"{row.count:,} {row.reason.value}",
        )
        for row in status.waiting[:MAX_WAITING_ROWS]
    ]


def limit_rows(view: EngineView) -> list[tuple[str, str]]:
    """The limits in force under their published names."""
    assert view.status is not None
    limits = view.status.limits
    return [
        ("max_num_seqs", f"{limits.max_num_seqs:,}"),
        ("max_num_batched_tokens", f"{limits.max_num_batched_tokens:,}"),
        ("max_num_prefill_tokens", f"{limits.max_num_prefill_tokens:,}"),
        ("prefill_chunk_size", f"{limits.prefill_chunk_size:,}"),
        ("long_context_threshold", f"{limits.long_context_threshold:,}"),
        ("max_num_long_context_seqs", f"{limits.max_num_long_context_seqs:,}"),
        ("max_model_len", f"{limits.max_model_len:,}"),
        ("max_output_len", f"{limits.max_output_len:,}"),
        ("kv_cache_utilization_limit", f"{limits.kv_cache_utilization_limit:g}"),
        ("waiting_timeout_ms", f"{limits.waiting_timeout_ms:,}"),
        ("offline_kv_utilization_limit", f"{limits.offline_kv_utilization_limit:g}"),
        ("offline_min_share", f"{limits.offline_min_share:g}"),
    ]


def _slo_values(line: SloLine) -> dict[str, Any]:
    name = slo_name(line.key)
    return {
        "key": line.key,
        "title": name.title,
        "measure": name.measure,
        "state": line.state,
        "target": measured(line.target, name.unit),
        "now": measured(line.now, name.unit),
        "five_minutes": measured(line.five_minutes, name.unit),
        "minutes_in_breach": line.minutes_in_breach,
    }


def _charts(snapshot: Snapshot) -> dict[str, Sparkline | float]:
    history = snapshot.history
    prompt = [(sample.at, sample.totals.prompt_tokens_per_second) for sample in history]
    generated = [(sample.at, sample.totals.generated_tokens_per_second) for sample in history]
    running = [(sample.at, float(sample.totals.running)) for sample in history]
    waiting = [(sample.at, float(sample.totals.waiting)) for sample in history]
    kv_used = [(sample.at, sample.totals.kv_used_share) for sample in history]
    return {
        "prompt_chart": _chart(snapshot, prompt),
        "prompt_peak": _peak(prompt),
        "generated_chart": _chart(snapshot, generated),
        "generated_peak": _peak(generated),
        "running_chart": _chart(snapshot, running),
        "waiting_chart": _chart(snapshot, waiting),
        "kv_chart": _chart(snapshot, kv_used, ceiling=1.0),
        "kv_peak": _peak(kv_used),
    }


def _chart(
    snapshot: Snapshot, points: list[tuple[float, float]], *, ceiling: float | None = None
) -> Sparkline:
    top = ceiling if ceiling is not None else max(_peak(points), 1.0)
    return sparkline(points, now=snapshot.at, window_seconds=HISTORY_SECONDS, ceiling=top)


def _peak(points: list[tuple[float, float]]) -> float:
    return max((value for _, value in points), default=0.0)
