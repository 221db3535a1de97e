"""From a directory to a model that computes: chooses device and type, reads the weights."""

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.errors import ModelError
from engine.models.config import ModelConfig, read_config
from engine.models.description import ModelDescription, describe
from engine.models.llama import Llama
from engine.models.rotary import RotaryEmbedding, inverse_frequencies
from engine.models.weights import load_weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to compute, and what its files say about it."""

    network: Llama
    description: ModelDescription
    dtype: torch.dtype
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

    @property
    def dtype_name(self) -> str:
        """The type as settings name it."""
        return next(name for name, dtype in _DTYPES.items() if dtype == self.dtype)


def load_model(directory: Path, *, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Loads the Hugging Face directory `directory`.

    `dtype` is float32, bfloat16 or auto (float32 on a CPU, bfloat16 on a GPU), `device` is cpu, cuda or auto.
    Raises ModelError, in one line, where the files or the device are not what they should be.
    """
    chosen_device = resolve_device(device)
    chosen_dtype = resolve_dtype(dtype, chosen_device)
    config = read_config(directory)
    description = describe(directory)
    frequencies = inverse_frequencies(config.rope, config.head_dim).to(chosen_device)
    network = Llama(
        config=config,
        weights=load_weights(directory, config, dtype=chosen_dtype, device=chosen_device),
        rotary=RotaryEmbedding(frequencies),
    )
    return LoadedModel(network=network, description=description, dtype=chosen_dtype, device=chosen_device)


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


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type that a setting names; auto is what is fast and exact enough on `device`. Raises ModelError."""
    if name == "auto":
        # Measured on two AVX-512 cores without AMX: from 32 rows on, bfloat16 is slower than float32.
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ModelError(f"the type {name!r} is not known; choose auto, {' or '.join(_DTYPES)}")
    return _DTYPES[name]
