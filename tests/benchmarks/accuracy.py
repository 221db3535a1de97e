"""What each number format costs the default model in accuracy, beside float32.

Run: python -m tests.benchmarks.accuracy. About two minutes on two cores; the gate is test_int8_accuracy.py.
"""

from pathlib import Path

from deploy.models import DEFAULT_MODEL, find
from engine.models.loading import load_model
from engine.models.precision import NAMES
from tests.benchmarks.scheduler.report import print_table
from tests.builders.accuracy import NUM_GREEDY_TOKENS, TEXTS, Accuracy, measure_accuracy

CACHE_DIR = Path(__file__).parents[2] / ".cache"
REFERENCE = "float32"


def main() -> None:
    directory = find(DEFAULT_MODEL, CACHE_DIR)
    accuracies = {
        dtype: measure_accuracy(load_model(directory, dtype=dtype, device="cpu")) for dtype in NAMES
    }
    head = ["dtype"]
    for text in TEXTS:
        head += [f"perplexity of {text}", "ratio"]
    reference = accuracies[REFERENCE]
    rows = [row(dtype, accuracy, reference) for dtype, accuracy in accuracies.items()]
    print_table([*head, f"first {NUM_GREEDY_TOKENS} greedy tokens equal"], rows)


def row(dtype: str, accuracy: Accuracy, reference: Accuracy) -> list[str]:
    cells = [dtype]
    for text in TEXTS:
        cells += [f"{accuracy.perplexities[text]:.3f}", f"{accuracy.ratio(reference, text):.4f}"]
    return [*cells, f"{accuracy.num_equal_answers(reference)} of {len(reference.answers)}"]


if __name__ == "__main__":
    main()
