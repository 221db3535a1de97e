"""OpenVINO GenAI's continuous batching in this process. It runs in the peer's environment, without ours.

    python -P openvino_pipeline.py MODEL.gguf

One JSON document a line: `{"ready": true}` first; then for each load that comes in (`prompts`, token ids;
`num_output_tokens`; `concurrency`) what was seen of each request, in seconds since the load began.
"""

import json
import os
import sys
import time
from typing import Any

import numpy
import openvino
import openvino_genai


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the library's own words are for the log
    pipeline = openvino_genai.ContinuousBatchingPipeline(sys.argv[1], openvino_genai.SchedulerConfig(), "CPU")
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        print(json.dumps(carry_out(pipeline, json.loads(line))), file=answers)


def carry_out(pipeline: Any, load: dict[str, Any]) -> list[dict[str, Any]]:
    """Keeps `concurrency` requests under way until all prompts had their answer."""
    waiting = list(enumerate(load["prompts"]))[::-1]
    under_way: dict[int, tuple[Any, dict[str, Any]]] = {}
    seen = []
    began_at = time.perf_counter()
    while waiting or under_way:
        while waiting and len(under_way) < load["concurrency"]:
            number, prompt = waiting.pop()
            record: dict[str, Any] = {"started_at": time.perf_counter() - began_at, "token_times_at": []}
            under_way[number] = (_add(pipeline, number, prompt, load["num_output_tokens"]), record)
        pipeline.step()
        now = time.perf_counter() - began_at
        for number in list(under_way):
            handle, record = under_way[number]
            while handle.can_read():
                record["token_times_at"] += [
                    now for output in handle.read().values() for _ in output.generated_ids
                ]
            if handle.get_status().name != "RUNNING":
                seen.append({**record, "ended_at": now, "status": handle.get_status().name})
                del under_way[number]
    return seen


def _add(pipeline: Any, number: int, prompt: list[int], num_output_tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = num_output_tokens
    config.ignore_eos = True
    config.do_sample = False
    return pipeline.add_request(number, openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)), config)


if __name__ == "__main__":
    main()
