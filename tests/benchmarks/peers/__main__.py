"""Runs ours and what users would run instead, in turn, under the same load, and prints one table.

python -m tests.benchmarks.peers [llama.cpp vllm openvino ...] [--ours int8 float32] [--runs 3]

The exit status is 1 when a target was missed, or when nothing could be judged.
"""

import argparse
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from deploy.failure import Failure
from tests.benchmarks.peers.judgement import Judgement, judge
from tests.benchmarks.peers.llama_server import LlamaServer
from tests.benchmarks.peers.loads import LOADS, WARM_UP, Load, seed_of, smoke
from tests.benchmarks.peers.openvino_genai_peer import OpenVinoGenAi
from tests.benchmarks.peers.sluice_serve import SluiceServe
from tests.benchmarks.peers.system import NotAvailable, System, has_fast_bfloat16, num_cores
from tests.benchmarks.peers.table import rows
from tests.benchmarks.peers.targets import (
    MEASURES,
    VLLM_FLOAT32,
    RunFigures,
    targets_among,
)
from tests.benchmarks.peers.vllm_server import VllmServer
from tests.benchmarks.scheduler.report import print_surroundings, print_table, progress

PEERS: Final[Mapping[str, Callable[[], System]]] = {
    "llama.cpp": LlamaServer,
    "vllm": lambda: VllmServer(name="vllm", dtype="bfloat16"),
    "openvino": OpenVinoGenAi,
    VLLM_FLOAT32: lambda: VllmServer(name=VLLM_FLOAT32, dtype="float32"),
}
DTYPES: Final = ("int8", "float32")
DEFAULT_RUNS: Final = 3

Runs = dict[str, list[RunFigures]]


def main() -> int:
    options = _options()
    systems = [SluiceServe(dtype=dtype, settings=dict(options.setting)) for dtype in options.ours]
    chosen: list[System] = [*systems, *(PEERS[name]() for name in options.peer)]
    print_surroundings()
    reasons: dict[str, str] = {}
    _prepare(chosen, reasons)
    if options.prepare:
        return _print_reasons(chosen, reasons)
    loads = [load for load in LOADS if load.name in options.loads]
    loads = [smoke(load) for load in loads] if options.smoke else loads
    runs = _measure(chosen, loads, 1 if options.smoke else options.runs, reasons)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1))
    _print(runs, chosen, loads, options)
    num_unavailable = _print_reasons(chosen, reasons)
    if options.smoke:
        return num_unavailable
    return _print_judgement(judge(runs, [system.name for system in chosen]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", nargs="*", help=f"{', '.join(PEERS)} (default: {' '.join(_default_peers())})")
    parser.add_argument("--ours", nargs="*", default=list(DTYPES), choices=DTYPES, help="precisions of ours")
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS, help="starts of each system (default: 3)")
    parser.add_argument(
        "--setting", action="append", default=[], type=_setting, metavar="SECTION.KEY=VALUE",
        help="a setting of ours, such as scheduler.max_num_batched_tokens=512",
    )  # fmt: skip
    parser.add_argument(
        "--loads", nargs="*", default=[load.name for load in LOADS], choices=[load.name for load in LOADS],
        help="which loads (default: all)",
    )  # fmt: skip
    parser.add_argument("--prepare", action="store_true", help="install and fetch only")
    parser.add_argument("--smoke", action="store_true", help="one run of tiny loads, nothing judged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures of all runs there")
    options = parser.parse_args()
    options.peer = options.peer or _default_peers()
    unknown = [name for name in options.peer if name not in PEERS]
    if unknown:
        parser.error(f"there is no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    return options


def _default_peers() -> list[str]:
    return [name for name in PEERS if name != VLLM_FLOAT32 or not has_fast_bfloat16()]


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise argparse.ArgumentTypeError(f"write SECTION.KEY=VALUE, not {text!r}")
    return key, value


def _prepare(systems: Sequence[System], reasons: dict[str, str]) -> None:
    for system in systems:
        try:
            system.prepare()
        except NotAvailable as error:
            reasons[system.name] = f"it cannot be set up here: {error}"
            progress(f"{system.name}: {reasons[system.name]}")


def _measure(
    systems: Sequence[System], loads: Sequence[Load], num_runs: int, reasons: dict[str, str]
) -> Runs:
    """In turn: every system once, then all again. One that fails is left out from then on."""
    runs: Runs = defaultdict(list)
    for run in range(1, num_runs + 1):
        for system in systems:
            if system.name not in reasons:
                progress(f"run {run} of {num_runs}: {system.name} ({system.description})")
                try:
                    runs[system.name].append(_run(system, run, loads))
                except (NotAvailable, Failure) as error:
                    reasons[system.name] = f"it does not run here: {error}"
                    progress(f"{system.name}: {reasons[system.name]}")
    return {name: seen for name, seen in runs.items() if name not in reasons}


def _run(system: System, run: int, loads: Sequence[Load]) -> RunFigures:
    began_at = time.monotonic()
    with system.running() as running:
        start_seconds = time.monotonic() - began_at
        progress(f"  ready after {start_seconds:.1f} s; warming up")
        running.carry_out(WARM_UP, seed=seed_of(run, WARM_UP))
        seen = {}
        for load in loads:
            progress(f"  {load.name}: {load.num_requests} requests, {load.concurrency} at a time")
            seen[load.name] = running.carry_out(load, seed=seed_of(run, load))
        figures = RunFigures(start_seconds=start_seconds, by_load=seen)
        values = [(measure, measure.read(figures)) for measure in MEASURES]
        progress("  " + " · ".join(f"{each.name} {value:.1f}" for each, value in values if value is not None))
    return figures


def _print(runs: Runs, systems: Sequence[System], loads: Sequence[Load], options: argparse.Namespace) -> None:
    for system in systems:
        print(f"{system.name:<14}{system.description}")
    settings = ", ".join(f"{key}={value}" for key, value in options.setting) or "defaults"
    print(f"\nsettings of ours: {settings}; {num_cores()} cores for everybody and the load generator")
    for load in loads:
        print(
            f"{load.name}: {load.num_requests} requests of {load.num_prompt_tokens} tokens in, "
            f"{load.num_output_tokens} out, {load.concurrency} at a time"
        )
    num_runs = max(map(len, runs.values()), default=0)
    print(
        f"{num_runs} runs in turn, medians{'; SMOKE: tiny loads, compare nothing' if options.smoke else ''}\n"
    )
    names = [system.name for system in systems]
    targets = [] if options.smoke else targets_among(names)
    print_table(
        ("", *names), list(rows(runs, names, targets)) or [["nothing was measured", *("" for _ in names)]]
    )


def _print_reasons(systems: Sequence[System], reasons: Mapping[str, str]) -> int:
    """Those that are missing, and why; returns 1 when there are any."""
    for system in systems:
        if system.name in reasons:
            print(f"NOT MEASURED  {system.name} ({system.description}): {reasons[system.name]}")
    return int(bool(reasons))


def _print_judgement(judgement: Judgement) -> int:
    """Returns 1 unless all is well."""
    print(
        f"{judgement.num_met} of {judgement.num_judged} targets met, {judgement.num_not_shown} not shown",
        *(f"  MISS  {line}" for line in judgement.misses),
        sep="\n",
    )
    return 0 if judgement.is_good else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way, no server outlives this process
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
