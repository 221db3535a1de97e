"""Turns a GGUF file into a Hugging Face directory, in its own process: it holds a whole model for a moment.

    python -m deploy.model_conversion FILE.gguf DIRECTORY

Progress goes to stderr. A foreseeable failure is one line on stdout and exit code 1.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from safetensors.numpy import save_file

from engine.errors import ModelError
from engine.models.gguf import GgufFile
from engine.models.gguf_tokenizer import build_tokenizer, tokenizer_config


def convert_gguf(source: Path, directory: Path, console: Console) -> None:
    """Fills the existing `directory` with the model in `source`; raises ModelError if we cannot serve it."""
    console.print(f"Reading {source.name}")
    file = GgufFile(source)
    config = file.config()
    _write_json(directory / "config.json", config)
    _write_json(
        directory / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id") if config[key] is not None},
    )
    build_tokenizer(file).save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", tokenizer_config(file))
    save_file(_all_tensors(file, console), directory / "model.safetensors", metadata={"format": "pt"})


def _all_tensors(file: GgufFile, console: Console) -> dict[str, np.ndarray]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        return dict(progress.track(file.tensors(), total=file.num_tensors, description="Converting tensors"))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Converts what the command line names; returns the exit code."""
    source, directory = (Path(argument) for argument in sys.argv[1:3])
    try:
        convert_gguf(source, directory, Console(stderr=True))
    except (ModelError, OSError) as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
