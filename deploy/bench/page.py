"""A report as one HTML page that needs nothing else: no network, no scripts."""

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deploy.bench import charts
from deploy.bench.charts import drawn
from deploy.bench.plots import charts_of
from deploy.bench.report import Report, RunReport
from deploy.bench.wording import MEASURES, SUMMARY_COLUMNS, facts_of, is_generator_late, summary_of

TEMPLATE: Final = "page.html.jinja"


def page_of(report: Report) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        report=report,
        runs=[_shown(run) for run in report.runs],
        measures=MEASURES,
        summary_columns=SUMMARY_COLUMNS,
        geometry=charts,
    )


def _shown(run: RunReport) -> dict[str, object]:
    return {
        "report": run,
        "figures": run.figures,
        "summary": summary_of(run),
        "facts": list(facts_of(run)),
        "is_generator_late": is_generator_late(run.figures),
        "drawings": [drawn(chart) for chart in charts_of(run)],
    }
