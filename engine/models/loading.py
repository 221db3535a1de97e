"""From a directory to a model that computes: chooses device and type, reads the weights."""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig, read_config
from engine.models.description import ModelDescription, describe
from engine.models.llama import Llama
from engine.models.precision import Precision, choose_precision
from engine.models.rotary import RotaryEmbedding, inverse_frequencies
from engine.models.weights import load_weights


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to compute, and what its files say about it."""

    network: Llama
    description: ModelDescription
    precision: Precision
    device: torch.device

    @property
    def config(self) -> ModelConfig:
        """The shape of the network."""
        return self.network.config

    @property
    def vocab_size(self) -> int:
        """How many token ids the model knows; all are below it."""
        return self.config.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        """The longest context that the model was made for, in tokens."""
        return self.config.max_position_embeddings

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        return self.description.eos_token_ids


def load_model(
    directory: Path, *, dtype: str = "auto", device: str = "auto", prepared_in: Path | None = None
) -> LoadedModel:
    """Loads the Hugging Face directory `directory`.

    `dtype` is float32, bfloat16, int8 or auto (see precision.py), `device` is cpu, cuda or auto; what is
    worked out on the way is kept for the next time in the folder `prepared_in`.
    Raises ModelError, in one line, where the files or the device are not what they should be.
    """
    chosen_device = resolve_device(device)
    precision = choose_precision(dtype, chosen_device)
    config = read_config(directory, prepared_in=prepared_in)
    description = describe(directory)
    frequencies = inverse_frequencies(config.rope, config.head_dim).to(chosen_device)
    network = Llama(
        config=config,
        weights=load_weights(
            directory, config, precision=precision, device=chosen_device, prepared_in=prepared_in
        ),
        rotary=RotaryEmbedding(frequencies),
    )
    return LoadedModel(network=network, description=description, precision=precision, device=chosen_device)


def resolve_device(name: str) -> torch.device:
    """The device that a setting names; auto is the GPU if there is one. Raises ModelError."""
    has_gpu = torch.cuda.is_available()
    match name:
        case "auto":
            return torch.device("cuda" if has_gpu else "cpu")
        case "cpu":
            return torch.device("cpu")
        case "cuda" if has_gpu:
            return torch.device("cuda")
        case "cuda":
            raise ModelError("the device 'cuda' was asked for, but PyTorch finds no GPU here")
        case _:
            raise ModelError(f"the device {name!r} is not known; choose auto, cpu or cuda")
