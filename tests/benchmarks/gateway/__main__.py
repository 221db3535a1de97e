"""What the gateway promises: runs all scenarios, or those that are named.

python -m tests.benchmarks.gateway [exact chaos latency saturation streams sql litellm] [--runs 3] [--smoke]

The exit status is 1 when a target was missed.
"""

from typing import Final

from tests.benchmarks.gateway import chaos, exact, latency, litellm, saturation, sql, streams
from tests.benchmarks.gateway.scenarios import Scenarios, run_and_exit

SCENARIOS: Final[Scenarios] = {
    "exact": ("Limits are exact over four workers", exact.run),
    "chaos": ("Clients that vanish and workers that are killed", chaos.run),
    "latency": ("What the gateway adds to an answer", latency.run),
    "saturation": ("What one worker on one core serves", saturation.run),
    "streams": ("Many streams at once", streams.run),
    "sql": ("Statements in the database", sql.run),
    "litellm": ("LiteLLM's proxy beside ours", litellm.run),
}

if __name__ == "__main__":
    run_and_exit(SCENARIOS, description=__doc__)
