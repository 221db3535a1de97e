"""OpenVINO GenAI's continuous batching from the GGUF file, in a process of its own and without HTTP."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from deploy.bench.figures import Figures, figures_of
from deploy.bench.records import RequestRecord
from deploy.bench.slo import Slo
from tests.benchmarks.peers.environments import Recipe, prepare
from tests.benchmarks.peers.loads import Load, prompts
from tests.benchmarks.peers.logged import reason_in
from tests.benchmarks.peers.model_files import gguf_file
from tests.benchmarks.peers.system import PEERS, NotAvailable, outside_environment

VERSION: Final = "2026.4.1.0"
FINISHED: Final = "FINISHED"
STOP_SECONDS: Final = 30.0
_RECIPE: Final = Recipe(
    name="openvino", requirements=(f"openvino-genai=={VERSION}",), note=" (300 MB, a minute)"
)


class OpenVinoGenAi:
    """`ContinuousBatchingPipeline` with its defaults, which take all cores."""

    name = "openvino"
    description = f"OpenVINO GenAI {VERSION}, in process"

    def prepare(self) -> None:
        """Raises NotAvailable."""
        prepare(_RECIPE)
        gguf_file()

    @contextmanager
    def running(self) -> Iterator["Pipeline"]:
        """Raises NotAvailable."""
        log = PEERS / f"{self.name}.log"
        script = Path(__file__).with_name("openvino_pipeline.py")
        with log.open("w") as output:
            process = subprocess.Popen(
                [_RECIPE.binary("python"), "-P", str(script), str(gguf_file())],
                env=outside_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        pipeline = Pipeline(questions=process.stdin, answers=process.stdout, log=log)
        try:
            pipeline.next_answer()
            yield pipeline
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)
            process.stdin.close()
            process.stdout.close()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The process at the other end of two pipes."""

    questions: IO[str]
    answers: IO[str]
    log: Path

    def carry_out(self, load: Load, *, seed: int) -> Figures:
        """The same prompts as over HTTP, and the same formulas; raises NotAvailable."""
        question = {
            "prompts": prompts(load, seed),
            "num_output_tokens": load.num_output_tokens,
            "concurrency": load.concurrency,
        }
        self.questions.write(json.dumps(question) + "\n")
        self.questions.flush()
        records = [_record(seen, load) for seen in self.next_answer()]
        return figures_of(records, slo=Slo(), weights={})

    def next_answer(self) -> Any:
        """Raises NotAvailable when the process is gone."""
        line = self.answers.readline()
        if not line:
            raise NotAvailable(f"its process ended: {reason_in(self.log)} (log: {self.log})")
        return json.loads(line)


def _record(seen: dict[str, Any], load: Load) -> RequestRecord:
    return RequestRecord(
        tenant="default",
        due_at=seen["started_at"],
        started_at=seen["started_at"],
        ended_at=seen["ended_at"],
        token_times_at=seen["token_times_at"],
        num_prompt_tokens=load.num_prompt_tokens,
        num_completion_tokens=len(seen["token_times_at"]),
        error=None if seen["status"] == FINISHED else seen["status"].lower(),
    )
