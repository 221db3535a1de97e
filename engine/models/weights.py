"""Reads a Hugging Face directory's safetensors into our merged weights: names and shapes of both sides."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.models.files import read_json
from engine.models.layers import LayerWeights, Projection
from engine.models.llama import LlamaWeights
from engine.models.precision import Precision
from engine.models.prepared_weights import PreparedWeights, open_prepared
from kernels.linear import Weight

_FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def load_weights(
    directory: Path,
    config: ModelConfig,
    *,
    precision: Precision,
    device: torch.device,
    prepared_in: Path | None = None,
) -> LlamaWeights:
    """All weights of the model in `directory`; raises ModelError for one missing, misshapen or left over.

    Packed weights are taken from, and kept in, the folder `prepared_in`.
    """
    files = _files(directory)
    prepared = open_prepared(prepared_in, directory, files, precision)
    with _open_checkpoint(directory, files) as checkpoint:
        reader = _Reader(checkpoint, config, precision, device, prepared)
        weights = reader.read()
        reader.check_nothing_is_left()
    prepared.save()
    return weights


@contextmanager
def _open_checkpoint(directory: Path, files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The open file that holds each tensor, by the tensor's name."""
    with ExitStack() as stack:
        holders: dict[str, Any] = {}
        try:
            for path in files:
                file = stack.enter_context(safe_open(path, framework="pt"))
                holders |= dict.fromkeys(file.keys(), file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"the weights in {directory} cannot be read: {error}") from error
        yield holders


def _files(directory: Path) -> list[Path]:
    index = read_json(directory / "model.safetensors.index.json")
    names = ["model.safetensors"] if index is None else sorted(set(index["weight_map"].values()))
    for name in names:
        if not (directory / name).is_file():
            raise ModelError(f"{directory} has no {name}; only safetensors weights are supported")
    return [directory / name for name in names]


class _Reader:
    """Takes tensors out of a checkpoint by their names there, and remembers which ones it took."""

    def __init__(
        self,
        checkpoint: dict[str, Any],
        config: ModelConfig,
        precision: Precision,
        device: torch.device,
        prepared: PreparedWeights,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._precision = precision
        self._device = device
        self._prepared = prepared
        self._left = set(checkpoint)

    def read(self) -> LlamaWeights:
        config, precision = self._config, self._precision
        table_shape = (config.vocab_size, config.hidden_size)
        embedding = "model.embed_tokens.weight"
        return LlamaWeights(
            embedding=self._take(embedding, table_shape).to(precision.embedding),
            layers=tuple(self._layer(f"model.layers.{index}") for index in range(config.num_layers)),
            final_norm=self._take("model.norm.weight", (config.hidden_size,)),
            output=self._weight({embedding if config.is_tied else "lm_head.weight": table_shape}),
        )

    def check_nothing_is_left(self) -> None:
        """A weight that we do not use means a model that we would compute wrongly."""
        unknown = {name for name in self._left if not name.endswith("rotary_emb.inv_freq")}
        if self._config.is_tied:
            unknown.discard("lm_head.weight")
        if unknown:
            raise ModelError(
                f"the model has {len(unknown)} weights that are not supported, {min(unknown)} first"
            )

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = {
            f"{attention}.q_proj": query_size,
            f"{attention}.k_proj": kv_size,
            f"{attention}.v_proj": kv_size,
        }
        return LayerWeights(
            input_norm=self._take(f"{prefix}.input_layernorm.weight", (hidden,)),
            qkv=self._merged(qkv, hidden, has_bias=config.has_attention_bias),
            attention_output=self._merged(
                {f"{attention}.o_proj": hidden}, query_size, has_bias=config.has_attention_bias
            ),
            post_attention_norm=self._take(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
            gate_and_up=self._merged(
                {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}, hidden, has_bias=config.has_mlp_bias
            ),
            down=self._merged({f"{mlp}.down_proj": hidden}, inner, has_bias=config.has_mlp_bias),
        )

    def _merged(self, out_sizes: dict[str, int], in_size: int, *, has_bias: bool) -> Projection:
        """Linear layers over the same rows, one below the other."""
        biases = [self._take(f"{name}.bias", (size,)) for name, size in out_sizes.items() if has_bias]
        return Projection(
            weight=self._weight({f"{name}.weight": (size, in_size) for name, size in out_sizes.items()}),
            bias=torch.cat(biases) if biases else None,
        )

    def _weight(self, shapes: dict[str, tuple[int, int]]) -> Weight:
        """The weight of one product: tensors of these names and shapes, one below the other."""
        for name, shape in shapes.items():
            self._check(name, shape)
        place = " ".join(shapes)
        weight = self._prepared.get(place)
        if weight is not None:
            return weight
        tensors = [self._view(name, shape) for name, shape in shapes.items()]
        is_copied_later = self._precision.is_packed and len(tensors) == 1
        made = self._precision.weight(tensors[0] if is_copied_later else torch.cat(tensors))
        self._prepared.put(place, made)
        return made

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        """Whether the checkpoint has such a tensor, without reading it."""
        if name not in self._checkpoint:
            raise ModelError(f"the model's weights lack {name}")
        self._left.discard(name)
        found = self._checkpoint[name].get_slice(name).get_shape()
        if tuple(found) != shape:
            raise ModelError(f"the weight {name} has shape {list(found)}, not {list(shape)}")

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A copy of our own."""
        return self._view(name, shape).clone()

    def _view(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """What the checkpoint has; it may be a view of a file that is about to close."""
        self._check(name, shape)
        tensor: Tensor = self._checkpoint[name].get_tensor(name)
        if tensor.dtype not in _FLOAT_TYPES:
            raise ModelError(f"the weight {name} is of type {tensor.dtype}, which is not supported")
        return tensor.to(device=self._device, dtype=self._precision.hidden)
