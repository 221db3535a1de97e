"""May two greedy texts of the same prompt differ? Only where the model itself all but tossed a coin."""

from pathlib import Path

from tokenizers import Tokenizer

from tests.builders.transformers_reference import TransformersReference

TOLERANCE = 1e-3


class NearTies:
    """Counts answers that part at a near tie; fails on one that parts anywhere else."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._reference: TransformersReference | None = None
        self.count = 0

    def check(self, prompt_text: str, one: str, other: str) -> None:
        """Asserts that both are the same text, or part where the two best logits are as good as equal."""
        if one == other:
            return
        self._reference = self._reference or TransformersReference(self._directory)
        prompt = self._tokenizer.encode(prompt_text).ids
        first, second = (self._tokenizer.encode(text, add_special_tokens=False).ids for text in (one, other))
        pairs = list(zip(first, second, strict=False))
        parting = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
        best, second_best = self._reference.logits(prompt + first[:parting])[-1].topk(2).values.tolist()
        assert best - second_best <= TOLERANCE, (
            f"{one!r} and {other!r} differ, margin {best - second_best:.2e}"
        )
        self.count += 1
