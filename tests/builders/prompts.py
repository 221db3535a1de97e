"""Twenty prompts of the kinds that people send: questions, code, other scripts, one token, long ones."""

from pathlib import Path

from tokenizers import Tokenizer


def chat(question: str) -> str:
    """The default model's chat format."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


VARIED_PROMPTS: tuple[str, ...] = (
    chat("What is the capital of France?"),
    chat("Write a haiku about rain."),
    chat("Explain in two sentences why the sky is blue."),
    chat("List three prime numbers above 100."),
    chat("Translate 'good morning' into Spanish."),
    chat("¿Cuál es la capital de Perú?"),
    chat("What is 17 times 23? Think step by step."),
    "Once upon a time",
    "The",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\nmatrix = np.zeros((3, 3))\nfor i in range(3):",
    '{"name": "Ada", "born": 1815, "field": ',
    "1, 1, 2, 3, 5, 8, 13, ",
    "Привет, как дела?",
    "日本の首都は",
    "🙂🙃 emoji and ünïcödé:",
    "a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a",
    "SELECT name, count(*) FROM users WHERE created_at > '2024-01-01' GROUP BY",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of",
    "In a distributed system, a consensus protocol lets a group of processes agree on one value although "
    "some of them may fail. The best known are Paxos and Raft. In Raft, a leader is elected by majority; it "
    "appends entries to its log and replicates them to the followers. An entry is committed when a majority "
    "has it, and",
)


def varied_prompt_ids(model_directory: Path) -> list[list[int]]:
    """The ids of the varied prompts under the tokenizer in `model_directory`."""
    tokenizer = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    return [encoding.ids for encoding in tokenizer.encode_batch(list(VARIED_PROMPTS))]
