"""Where the engine's time goes on this CPU: operators against the machine's best, batches, contexts, types.

python -m tests.benchmarks.engine [operators batches context types int8 start long_prompt]

The exit status is 1 when a target was missed.
"""

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch

from deploy.models import DEFAULT_MODEL, find
from engine.models.layers import Projection
from engine.models.loading import LoadedModel, load_model
from engine.models.precision import NAMES
from kernels import machine, native
from kernels.linear import PackedWeight, Weight, quantise_weight
from kernels.linear import native as native_linear
from tests.benchmarks.engine import process
from tests.benchmarks.engine.serving import NUM_THREADS, TimedStep, decode_steps, default_tokenizer
from tests.benchmarks.scheduler.report import (
    Figure,
    at_least,
    at_most,
    plain,
    print_figures,
    print_surroundings,
    print_table,
    progress,
)

CACHE: Final = Path(__file__).parents[3] / ".cache"
NUM_RUNS: Final = 3
GIGA: Final = 1e9
MULTIPLYING: Final = ("qkv", "attention_output", "gate_and_up", "down", "output")
"""Operators that are products with weights."""


def main() -> int:
    scenarios: dict[str, Callable[[Path], list[Figure]]] = {
        "operators": operators,
        "batches": batches,
        "context": context,
        "types": types,
        "int8": int8_product,
        "start": start,
        "long_prompt": long_prompt,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", help=", ".join(scenarios))
    chosen = parser.parse_args().scenario or list(scenarios)
    if unknown := [name for name in chosen if name not in scenarios]:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(scenarios)}")
    print_surroundings()
    directory = find(DEFAULT_MODEL, CACHE)
    figures: list[Figure] = []
    for name in chosen:
        print(f"=== {name}: {scenarios[name].__doc__}\n")
        some = scenarios[name](directory)
        print_figures(some)
        figures += some
    missed = [figure for figure in figures if figure.passed is False]
    for figure in missed:
        print(f"  MISS  {figure.name}: {figure.value}, target {figure.target}")
    return 1 if missed else 0


def operators(directory: Path) -> list[Figure]:
    """One decode step in int8, operator by operator, against what the machine can do."""
    library = native.library()
    assert library is not None, "this benchmark is about the native operators"
    library.sluice_set_num_threads(ctypes.c_int(NUM_THREADS))
    best = machine.measure(library)
    print(
        f"this machine, {NUM_THREADS} threads: {best.gflops:.0f} GFLOP/s in float32, "
        f"{best.int8_gops or 0:.0f} GOP/s in int8, {best.read_gbps:.1f} GB/s from memory\n"
    )
    model = load_model(directory, dtype="int8", device="cpu")
    figures = []
    for num_seqs in (1, 32):
        progress(f"operators: {num_seqs} sequences")
        steps = decode_steps(
            model, default_tokenizer(directory), num_seqs=num_seqs, prompt_len=128, output_len=64
        )
        host_share = _print_breakdown(model, steps, best)
        if num_seqs == 32:
            figures.append(at_most("host share of a step, 32 sequences", 100 * host_share, 15, "%", digits=1))
    return figures


def batches(directory: Path) -> list[Figure]:
    """Decode tokens a second by batch size, int8."""
    model = load_model(directory, dtype="int8", device="cpu")
    rates = {size: _decode_rate(model, directory, size, 128) for size in (1, 4, 8, 16, 32)}
    figures = [plain(f"{size} sequences", rate, "tokens/s", digits=1) for size, rate in rates.items()]
    return [*figures, at_least("16 sequences, of one", rates[16] / rates[1], 4, "times")]


def context(directory: Path) -> list[Figure]:
    """Decode time of one sequence by its context, int8."""
    model = load_model(directory, dtype="int8", device="cpu")
    tpot = {length: 1000 / _decode_rate(model, directory, 1, length) for length in (128, 1024, 4096)}
    figures = [plain(f"TPOT at {length} tokens", value, "ms") for length, value in tpot.items()]
    return [*figures, at_most("TPOT at 4,096, of that at 128", tpot[4096] / tpot[128], 2.5, "times")]


def types(directory: Path) -> list[Figure]:
    """Decode tokens a second by number format."""
    figures = []
    for dtype in NAMES:
        model = load_model(directory, dtype=dtype, device="cpu")
        for size in (1, 32):
            rate = _decode_rate(model, directory, size, 128)
            figures.append(plain(f"{dtype}, {size} sequences", rate, "tokens/s", digits=1))
    return figures


def int8_product(_: Path) -> list[Figure]:
    """The int8 linear operator beside torch._int_mm, M = 16 (which wants at least 17 rows, so 17)."""
    library = native.library()
    assert library is not None, "this benchmark is about the native operators"
    library.sluice_set_num_threads(ctypes.c_int(NUM_THREADS))
    torch.set_num_threads(NUM_THREADS)
    figures = []
    for out_size, in_size in ((960, 576), (3072, 576), (576, 1536)):
        packed = native_linear.pack(library, quantise_weight(torch.randn(out_size, in_size)))
        rows = torch.randn(16, in_size)
        left = torch.randint(-127, 127, (17, in_size), dtype=torch.int8)
        right = torch.randint(-127, 127, (in_size, out_size), dtype=torch.int8)
        own = _rate(
            16, out_size, in_size, lambda rows=rows, packed=packed: native_linear.linear(rows, packed, None)
        )
        theirs = _rate(17, out_size, in_size, lambda left=left, right=right: torch._int_mm(left, right))
        name = f"{in_size} -> {out_size}"
        figures.append(plain(f"{name}: ours, with quantising", own, "GOP/s", digits=0))
        figures.append(plain(f"{name}: torch._int_mm", theirs, "GOP/s", digits=0))
        figures.append(at_least(f"{name}: ours, of torch._int_mm", own / theirs, 0.6, "times"))
    return figures


def start(_: Path) -> list[Figure]:
    """The engine as a process: from the command to the first token."""
    return process.start(CACHE)


def long_prompt(directory: Path) -> list[Figure]:
    """The engine as a process: 8 short answers stream while a prompt of 4,096 tokens comes; its memory."""
    model = load_model(directory, dtype="int8", device="cpu")
    return process.long_prompt(CACHE, _weights_bytes(model))


def _weights_bytes(model: LoadedModel) -> int:
    """Memory that the weights take, all formats together."""
    packed = [weight for name in MULTIPLYING for weight in _weights_of(model, name)]
    parts = [model.network.weights.embedding]
    for weight in packed:
        parts += [weight.panels, *([] if weight.scales is None else [weight.scales])]
    return sum(part.nbytes for part in parts)


def _rate(num_rows: int, out_size: int, in_size: int, product: Callable[[], object]) -> float:
    """10^9 operations a second, the median of many products."""
    seconds = []
    for _ in range(50):
        begun = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - begun)
    return 2 * num_rows * out_size * in_size / statistics.median(seconds) / GIGA


def _decode_rate(model: LoadedModel, directory: Path, num_seqs: int, prompt_len: int) -> float:
    """Tokens a second of all sequences together: the median over steps of the median of runs."""
    progress(f"{model.precision.name}: {num_seqs} sequences of {prompt_len} tokens")
    rates = []
    for _ in range(NUM_RUNS):
        steps = decode_steps(
            model, default_tokenizer(directory), num_seqs=num_seqs, prompt_len=prompt_len, output_len=48
        )
        rates.append(num_seqs / statistics.median(_durations(steps)))
    return statistics.median(rates)


def _durations(steps: Sequence[TimedStep]) -> list[float]:
    """Seconds from each step's start to the next one's: all that a step costs, wherever it is spent."""
    return [after.launched_at - step.launched_at for step, after in pairwise(steps)]


def _print_breakdown(model: LoadedModel, steps: Sequence[TimedStep], best: machine.MachineLimits) -> float:
    """A table of one step's operators; returns the share of a step that is none of them."""
    num_rows = steps[0].num_rows
    step_seconds = statistics.mean(_durations(steps))
    means = {name: statistics.mean(step.seconds[name] for step in steps) for name in steps[0].seconds}
    host = step_seconds - sum(means.values())
    rows = [
        (
            name,
            f"{1000 * seconds:.2f} ms",
            f"{100 * seconds / step_seconds:.1f} %",
            *_against_the_best(model, name, num_rows, _mean_context(steps), seconds, best),
        )
        for name, seconds in means.items()
    ]
    rows.append(
        ("everything else", f"{1000 * host:.2f} ms", f"{100 * host / step_seconds:.1f} %", "", "", "")
    )
    rows.append(("a step", f"{1000 * step_seconds:.2f} ms", "100 %", "", "", ""))
    print_table((f"{num_rows} sequences", "time", "share", "rate", "of the best", "bound by"), rows)
    return host / step_seconds


def _mean_context(steps: Sequence[TimedStep]) -> float:
    return statistics.mean(step.num_context_tokens for step in steps)


def _against_the_best(
    model: LoadedModel,
    name: str,
    num_rows: int,
    num_context_tokens: float,
    seconds: float,
    best: machine.MachineLimits,
) -> tuple[str, str, str]:
    """Rate, share of the machine's best, and which of its limits that is, of the operators that are bound."""
    if name == "attention":
        config = model.config  # keys and values, of two bytes each
        num_bytes = 4 * config.num_layers * config.num_kv_heads * config.head_dim * num_context_tokens
        operations = 0.0
    elif weights := _weights_of(model, name):
        num_bytes = sum(weight.panels.nbytes for weight in weights)
        operations = 2.0 * num_rows * sum(weight.in_size * weight.out_size for weight in weights)
    else:
        return "", "", ""
    seconds_of_reading = num_bytes / (best.read_gbps * GIGA)
    seconds_of_computing = operations / ((best.int8_gops or best.gflops) * GIGA)
    if seconds_of_reading > seconds_of_computing:
        return (
            f"{num_bytes / seconds / GIGA:.1f} GB/s",
            f"{100 * seconds_of_reading / seconds:.0f} %",
            "memory",
        )
    return (
        f"{operations / seconds / GIGA:.0f} GOP/s",
        f"{100 * seconds_of_computing / seconds:.0f} %",
        "computing",
    )


def _weights_of(model: LoadedModel, name: str) -> list[PackedWeight]:
    """The weights that an operator multiplies with, of all layers; none where it multiplies with none."""
    weights = model.network.weights
    if name == "output":
        return _all_packed([weights.output])
    projections = [getattr(layer, name, None) for layer in weights.layers]
    return _all_packed([each.weight for each in projections if isinstance(each, Projection)])


def _all_packed(weights: Sequence[Weight]) -> list[PackedWeight]:
    packed = [weight for weight in weights if isinstance(weight, PackedWeight)]
    assert len(packed) == len(weights), "this benchmark is about the native operators"
    return packed


if __name__ == "__main__":
    sys.exit(main())
