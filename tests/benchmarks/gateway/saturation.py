"""How many short requests a second one gateway worker on one core serves, in whole answers.

The engine answers at once, by a timer of nothing. The store, the engine and the generator share the other
cores; what the generator can send is measured first, against a server that only answers: far above the
target, or the figure means nothing.
"""

from statistics import median
from typing import Final

from tests.benchmarks.gateway.child import child
from tests.benchmarks.gateway.cores import Cores, pinned
from tests.benchmarks.gateway.exchange import Seen, Shot
from tests.benchmarks.gateway.http_request import Address, chat
from tests.benchmarks.gateway.load import ClosedLoad, Generator, load_process
from tests.benchmarks.gateway.options import Options
from tests.benchmarks.gateway.processor_time import share_of_core
from tests.benchmarks.gateway.speed import num_failed, rate
from tests.benchmarks.gateway.stack import TimerKind, running_stack
from tests.benchmarks.scheduler.report import Figure, at_least, at_most, plain, print_figures, progress

NUM_CLIENTS: Final = 64
SECONDS: Final = 8.0
WARM_SECONDS: Final = 2.0
NUM_TOKENS: Final = 8
LEAST_RATE: Final = 2_000.0


def run(options: Options) -> list[Figure]:
    """Prints the table and returns the figures."""
    layout = pinned()
    with load_process(layout.others) as generator:
        progress("saturation: what the generator can send")
        most = ceiling(generator, layout.gateway, options)
        with running_stack(TimerKind(), layout) as stack:
            key = stack.customer("saturation")
            runs, shares = [], []
            for number in range(options.num_runs):
                progress(f"saturation, run {number + 1} of {options.num_runs}")
                with share_of_core(stack.gateways[0].worker_pids()) as share:
                    runs.append(measure(generator, stack.address(), key, options))
                shares.append(share.value)
    figures = [
        plain("the generator against a bare server", most, "requests/s", digits=0),
        at_least("whole answers", median(map(rate, runs)), LEAST_RATE, "requests/s", digits=0),
        plain("  of its core, the worker took", 100 * median(shares), "%", digits=0),
        at_most("failed requests", sum(map(num_failed, runs)), 0, digits=0),
    ]
    print(f"{layout}; {NUM_CLIENTS} clients, {len(runs)} runs, medians\n")
    print_figures(figures)
    return figures


def measure(generator: Generator, address: Address, key: str, options: Options) -> list[Seen]:
    """One run, warmed up."""
    _send(generator, address, key, options.size(WARM_SECONDS, smoke=0.5))
    return _send(generator, address, key, options.size(SECONDS, smoke=2.0))


def ceiling(generator: Generator, server_cores: Cores, options: Options) -> float:
    """Requests a second against the timer's own HTTP, which only answers, on the gateway's core."""
    with child("timer_process", "--secret", "none", cores=server_cores) as server:
        address = Address(host="127.0.0.1", port=server.said["http"])
        return rate(_send(generator, address, "none", options.size(SECONDS, smoke=2.0)))


def _send(generator: Generator, address: Address, key: str, seconds: float) -> list[Seen]:
    shots = [Shot(request=chat(key, num_tokens=NUM_TOKENS))]
    return generator.carry_out(
        ClosedLoad(address=address, shots=shots, num_clients=NUM_CLIENTS, seconds=seconds)
    )
