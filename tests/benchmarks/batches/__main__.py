"""What batches promise: runs all scenarios, or those that are named.

python -m tests.benchmarks.batches [throughput validation crashes beside] [--runs 3] [--smoke]

The exit status is 1 when a target was missed.
"""

from typing import Final

from tests.benchmarks.batches import beside, crashes, throughput, validation
from tests.benchmarks.gateway.scenarios import Scenarios, run_and_exit

SCENARIOS: Final[Scenarios] = {
    "throughput": ("Short lines a second, the database included", throughput.run),
    "validation": ("Fifty thousand lines looked at, in little memory", validation.run),
    "crashes": ("Fifty kills over ten thousand lines", crashes.run),
    "beside": ("A batch of the real model beside people", beside.run),
}

if __name__ == "__main__":
    run_and_exit(SCENARIOS, description=__doc__)
