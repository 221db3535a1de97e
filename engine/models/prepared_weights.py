"""Packed weights kept in a file, so that a model is quantised and packed once, not at every start.

The file is made anew when the model's files, the precision or the operators that read it are not those it was
made for.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.models.precision import Precision
from engine.models.prepared import keep, prepared_path
from kernels.linear import PackedWeight, Weight, packed_from, packing_fingerprint

logger = logging.getLogger(__name__)

_FINGERPRINT, _PANELS, _SCALES = "fingerprint", "panels", "scales"


@dataclass(kw_only=True)
class PreparedWeights:
    """The packed weights of one model by name: those that were kept, and those made meanwhile."""

    path: Path | None
    """None keeps nothing."""

    fingerprint: str
    _weights: dict[str, PackedWeight] = field(default_factory=dict)
    _is_changed: bool = False

    def get(self, name: str) -> PackedWeight | None:
        """The weight as it was kept."""
        return self._weights.get(name)

    def put(self, name: str, weight: Weight) -> None:
        """Keeps a weight, if it is a packed one."""
        if isinstance(weight, PackedWeight):
            self._weights[name] = weight
            self._is_changed = True

    def save(self) -> None:
        """Writes the file if it lacks something."""
        if self.path is not None and self._is_changed:
            keep(self.path, self._write)

    def _write(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        metadata = {_FINGERPRINT: self.fingerprint}
        for name, weight in self._weights.items():
            metadata[name] = json.dumps([int(weight.kind), weight.in_size, weight.out_size])
            tensors[f"{name} {_PANELS}"] = weight.panels
            if weight.scales is not None:
                tensors[f"{name} {_SCALES}"] = weight.scales
        try:
            save_file(tensors, path, metadata=metadata)
        except SafetensorError as error:  # how it says that a disk is full
            raise OSError(str(error)) from error


def open_prepared(
    folder: Path | None, directory: Path, files: Iterable[Path], precision: Precision
) -> PreparedWeights:
    """What `folder` holds of the model in `directory`, whose weights are `files`, in that precision."""
    fingerprint = _fingerprint(files, precision)
    if folder is None or not precision.is_packed:
        return PreparedWeights(path=None, fingerprint=fingerprint)
    path = prepared_path(folder, directory, f"-{precision.name}.safetensors")
    return PreparedWeights(path=path, fingerprint=fingerprint, _weights=_read(path, fingerprint))


def _read(path: Path, fingerprint: str) -> dict[str, PackedWeight]:
    """The weights in the file, or nothing where it is missing, damaged or of something else."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.pop(_FINGERPRINT, None) != fingerprint:
                return {}
            names = file.keys()
            # Copies, as memory of our own begins where a vector does.
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except FileNotFoundError:
        return {}
    except (OSError, SafetensorError) as error:
        logger.warning("%s is damaged and will be made anew: %s", path.name, error)
        return {}
    return {name: _packed(name, shape, tensors) for name, shape in metadata.items()}


def _packed(name: str, shape: str, tensors: dict[str, Tensor]) -> PackedWeight:
    kind, in_size, out_size = json.loads(shape)
    return packed_from(
        kind=kind,
        in_size=in_size,
        out_size=out_size,
        panels=tensors[f"{name} {_PANELS}"],
        scales=tensors.get(f"{name} {_SCALES}"),
    )


def _fingerprint(files: Iterable[Path], precision: Precision) -> str:
    parts = [precision.name, packing_fingerprint()]
    for path in files:
        stat = path.stat()
        parts.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(parts)
