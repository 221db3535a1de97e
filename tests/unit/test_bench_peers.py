"""Comparison with other systems: medians, verdicts, the table, and why a system is missing."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.bench.figures import Figures, figures_of
from deploy.bench.records import RequestRecord
from deploy.bench.slo import Slo
from tests.benchmarks.peers.environments import Recipe
from tests.benchmarks.peers.judgement import judge
from tests.benchmarks.peers.loads import C1, C32, LOADS, WARM_UP, prompts, seed_of
from tests.benchmarks.peers.logged import reason_in, run_logged
from tests.benchmarks.peers.server_process import serving
from tests.benchmarks.peers.system import NotAvailable, free_port
from tests.benchmarks.peers.table import NOT_SHOWN, rows
from tests.benchmarks.peers.targets import (
    C1_TPOT,
    C32_RATE,
    FLOAT32,
    INT8,
    LLAMA_CPP,
    OPENVINO,
    VLLM,
    VLLM_FLOAT32,
    AtLeast,
    AtMost,
    RunFigures,
    Target,
    median_of,
    num_failed,
    targets_among,
    verdict,
)

TPOT = Target(measure=C1_TPOT, ours=INT8, bound=AtMost(factor=0.5), peer=LLAMA_CPP)
NAMES = (INT8, LLAMA_CPP, VLLM)
RATE = Target(measure=C32_RATE, ours=INT8, bound=AtLeast(factor=4.0), peer=VLLM)


def figures(*, tpot_ms: float, errors: int = 0) -> Figures:
    """Of one request of eleven tokens, `tpot_ms` apart, the first at once; and some that failed."""
    times = [number * tpot_ms / 1_000 for number in range(11)]
    whole = RequestRecord(
        tenant="t",
        due_at=0.0,
        started_at=0.0,
        ended_at=times[-1],
        token_times_at=times,
        num_completion_tokens=len(times),
    )
    failed = RequestRecord(tenant="t", due_at=0.0, started_at=0.0, ended_at=0.0, error="timeout")
    return figures_of([whole, *[failed] * errors], slo=Slo(), weights={})


def run(*, tpot_ms: float, errors: int = 0) -> RunFigures:
    """One start with both loads at the same speed."""
    seen = figures(tpot_ms=tpot_ms, errors=errors)
    return RunFigures(start_seconds=1.0, by_load={load.name: seen for load in LOADS})


def test_one_slow_run_does_not_move_the_median() -> None:
    assert median_of(C1_TPOT, [run(tpot_ms=10), run(tpot_ms=500), run(tpot_ms=11)]) == pytest.approx(11)


def test_a_measure_that_nobody_saw_has_no_median() -> None:
    assert median_of(C1_TPOT, [RunFigures(start_seconds=1.0, by_load={})]) is None


@pytest.mark.parametrize(("ours_ms", "is_met"), [(4.9, True), (5.1, False)])
def test_latency_is_to_be_at_most_a_part_of_theirs(ours_ms: float, is_met: bool) -> None:
    seen = verdict(TPOT, {INT8: [run(tpot_ms=ours_ms)], LLAMA_CPP: [run(tpot_ms=10)]})

    assert seen.is_met is is_met


@pytest.mark.parametrize(("ours_ms", "is_met"), [(2.4, True), (2.6, False)])
def test_throughput_is_to_be_at_least_a_multiple_of_theirs(ours_ms: float, is_met: bool) -> None:
    seen = verdict(RATE, {INT8: [run(tpot_ms=ours_ms)], VLLM: [run(tpot_ms=10)]})

    assert seen.is_met is is_met


def test_a_peer_that_is_missing_is_no_miss_and_no_success() -> None:
    assert verdict(TPOT, {INT8: [run(tpot_ms=1)]}).is_met is None


def test_requests_that_failed_are_counted_over_all_loads() -> None:
    assert num_failed(run(tpot_ms=10, errors=3)) == 3 * len(LOADS)


def test_the_ratio_stands_under_the_peer_that_it_belongs_to() -> None:
    runs = {INT8: [run(tpot_ms=4)], LLAMA_CPP: [run(tpot_ms=10)], VLLM: [run(tpot_ms=30)]}

    table = {row[0].strip(): row[1:] for row in rows(runs, NAMES, targets_among(NAMES))}

    assert table["c1 TPOT, ms"] == ["4.0", "10.0", "30.0"]
    assert table["ours-int8 ≤ 0.5 × llama.cpp"] == ["", "0.40 × pass", ""]
    assert table["ours-int8 ≤ 0.25 × vllm"] == ["", "", "0.13 × pass"]


def test_a_target_that_could_not_be_judged_says_so() -> None:
    table = {row[0].strip(): row[1:] for row in rows({INT8: [run(tpot_ms=4)]}, NAMES, [TPOT])}

    assert table["ours-int8 ≤ 0.5 × llama.cpp"] == ["", NOT_SHOWN, ""]


def test_all_is_well_when_every_target_is_met_and_no_request_failed() -> None:
    judgement = judge({INT8: [run(tpot_ms=1)], LLAMA_CPP: [run(tpot_ms=10)]}, [INT8, LLAMA_CPP])

    assert (judgement.is_good, judgement.num_met, judgement.misses) == (True, 1, [])


def test_a_failed_request_to_ours_is_a_miss_however_fast_the_others() -> None:
    judgement = judge({INT8: [run(tpot_ms=1, errors=1)], LLAMA_CPP: [run(tpot_ms=10)]}, [INT8, LLAMA_CPP])

    assert judgement.misses == [f"ours-int8: {len(LOADS)} requests failed; none may"]


def test_a_failed_request_to_a_peer_is_no_miss() -> None:
    judgement = judge({INT8: [run(tpot_ms=1)], LLAMA_CPP: [run(tpot_ms=10, errors=1)]}, [INT8, LLAMA_CPP])

    assert judgement.is_good


def test_ours_has_to_run() -> None:
    judgement = judge({INT8: [run(tpot_ms=1)], LLAMA_CPP: [run(tpot_ms=10)]}, [INT8, FLOAT32, LLAMA_CPP])

    assert judgement.misses == ["ours-float32: it could not be measured"]


def test_nothing_judged_is_not_good() -> None:
    judgement = judge({INT8: [run(tpot_ms=1)]}, [INT8, LLAMA_CPP])

    assert (judgement.is_good, judgement.num_not_shown) == (False, 1)


def test_targets_of_systems_that_were_not_asked_for_are_left_out() -> None:
    assert targets_among([FLOAT32, LLAMA_CPP, OPENVINO]) == []


def test_vllms_float32_has_to_be_beaten_by_as_much_as_its_bfloat16() -> None:
    against = {peer: targets_among([INT8, FLOAT32, peer]) for peer in (VLLM, VLLM_FLOAT32)}

    assert [replace(target, peer=VLLM) for target in against[VLLM_FLOAT32]] == against[VLLM]
    assert against[VLLM]


def test_no_two_loads_of_any_two_runs_share_a_prompt() -> None:
    firsts = [
        tuple(prompt[:32])
        for number in (1, 2, 3)
        for load in (WARM_UP, C1, C32)
        for prompt in prompts(load, seed_of(number, load))
    ]

    assert len(set(firsts)) == len(firsts)


def test_everybody_gets_the_same_prompts() -> None:
    assert prompts(C1, seed_of(1, C1)) == prompts(C1, seed_of(1, C1))


def test_the_last_error_in_a_log_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("starting\nRuntimeError: no such instruction\n  bye\n")

    assert reason_in(log) == "RuntimeError: no such instruction"


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('ERROR: no compiler')"]

    with pytest.raises(NotAvailable, match=r"building failed: ERROR: no compiler"):
        run_logged(command, what="building", log=tmp_path / "log", environment={})


def test_a_server_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('ValueError: AVX-512 is not supported here')"]
    url = f"http://127.0.0.1:{free_port()}"

    with (
        pytest.raises(NotAvailable, match="AVX-512 is not supported here"),
        serving(command, url, environment={}, log=tmp_path / "log"),
    ):
        pass


def test_a_servers_own_children_end_with_it(tmp_path: Path) -> None:
    port = free_port()
    script = tmp_path / "server.py"
    script.write_text(SERVER_WITH_A_CHILD)
    command = [sys.executable, str(script), str(port), str(tmp_path / "child")]

    with serving(command, f"http://127.0.0.1:{port}", environment={}, log=tmp_path / "log"):
        child = int((tmp_path / "child").read_text())

    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=False
    )
    assert state.stdout.strip() in ("", "Z")


def test_an_environment_is_made_anew_when_its_recipe_changes() -> None:
    old = Recipe(name="peer", requirements=("a==1",))

    assert old.identity != Recipe(name="peer", requirements=("a==2",)).identity


SERVER_WITH_A_CHILD = """
import http.server, pathlib, subprocess, sys

child = subprocess.Popen([sys.executable, "-c", "import signal; signal.alarm(600); signal.pause()"])
pathlib.Path(sys.argv[2]).write_text(str(child.pid))


class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Models).serve_forever()
"""
