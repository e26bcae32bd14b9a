"""Feature files: one HDF5 a slide, written whole, vouched for by a sidecar that is written last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import atomic_path, read_json, sha256_file, sha256_json, write_csv, write_json
from acpbench.features.registry import EncoderSpec

INDEX_COLUMNS = ["slide_id", "encoder", "status", "n_tiles", "path", "sha256", "cache_key"]
SCRATCH_VARIABLE = "ACPBENCH_SCRATCH"
STORE_VERSION = 2
"""Goes into every cache key; raised when the same inputs would give other features."""


@dataclass(frozen=True)
class FeatureBag:
    """Features of one slide: (N, D) ``features`` as stored, (N, 2) int64 level-0 ``coords``, ``attrs``."""

    features: np.ndarray
    coords: np.ndarray
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def slide_id(self) -> str:
        """Identifier of the slide."""
        return str(self.attrs["slide_id"])

    @property
    def status(self) -> str:
        """``ok``, or why the slide has no features."""
        return str(self.attrs["status"])


def cache_key(*, slide_sha256: str, tiler_sha256: str, spec: EncoderSpec, weights_sha256: str) -> str:
    """Key of a feature file: a hash of slide, tiler settings, encoder settings and weights."""
    return sha256_json(
        {
            "store_version": STORE_VERSION,
            "slide_sha256": slide_sha256,
            "tiler_sha256": tiler_sha256,
            "encoder_sha256": spec.settings_sha256(),
            "weights_sha256": weights_sha256,
        }
    )


def sidecar_path(path: str | os.PathLike[str]) -> Path:
    """``<slide_id>.h5`` → ``<slide_id>.h5.json``."""
    path = Path(path)
    return path.with_name(path.name + ".json")


def write_features(path: str | os.PathLike[str], bag: FeatureBag) -> None:
    """Write a feature file and then its sidecar; an earlier sidecar is removed first.

    The file is made beside its target and renamed. Where that folder lies on a volume that HDF5 cannot write
    to, set ``ACPBENCH_SCRATCH`` to a local folder: the file is made there and copied over in one sweep.

    Args:
        path: target ``<slide_id>.h5``.
        bag: features already in their stored type, float16 or float32, and every attribute of the file.

    Raises:
        InputError: shapes that do not agree, features that are not finite, a missing attribute.
    """
    check_bag(bag)
    path = Path(path)
    sidecar = sidecar_path(path)
    sidecar.unlink(missing_ok=True)
    scratch = os.environ.get(SCRATCH_VARIABLE)
    with atomic_path(path) as temporary:
        if scratch:
            with tempfile.TemporaryDirectory(dir=scratch, prefix="acpbench-") as folder:
                _write_hdf5(Path(folder) / path.name, bag)
                shutil.copyfile(Path(folder) / path.name, temporary)
        else:
            _write_hdf5(temporary, bag)
        digest = sha256_file(temporary)
    write_json(
        sidecar,
        {
            "slide_id": bag.slide_id,
            "encoder": str(bag.attrs["encoder"]),
            "cache_key": str(bag.attrs["cache_key"]),
            "sha256": digest,
            "n_tiles": len(bag.features),
            "status": bag.status,
        },
    )


def _write_hdf5(path: Path, bag: FeatureBag) -> None:
    import h5py

    with h5py.File(path, "w") as handle:
        # Contiguous and uncompressed: the whole slide is one read.
        handle.create_dataset("features", data=bag.features)
        handle.create_dataset("coords", data=bag.coords)
        for name in sorted(bag.attrs):
            value = bag.attrs[name]
            handle.attrs[name] = json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _check_layout(bag: FeatureBag) -> None:
    lacking = [name for name in ("slide_id", "status", "encoder", "cache_key") if name not in bag.attrs]
    if lacking:
        raise InputError(f"feature file without {', '.join(lacking)}")
    if bag.features.ndim != 2 or bag.coords.shape != (len(bag.features), 2):
        raise InputError(f"features {bag.features.shape} and coords {bag.coords.shape} do not agree")
    if bag.features.dtype not in (np.float16, np.float32) or bag.coords.dtype != np.int64:
        raise InputError(f"features are {bag.features.dtype} and coords {bag.coords.dtype}")


def check_bag(bag: FeatureBag) -> None:
    """Raise :class:`InputError` unless a bag can be written: shapes, types, attributes, finite values."""
    _check_layout(bag)
    if not np.isfinite(bag.features).all():
        raise InputError(f"slide {bag.slide_id}: a feature is not finite in {bag.features.dtype}")


def write_index(sidecars: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """List feature files by their sidecars: one row a slide with status, tiles and hashes, sorted by path."""
    paths = sorted(Path(sidecar) for sidecar in sidecars)
    write_csv(out, INDEX_COLUMNS, [{"path": path.stem, **read_json(path)} for path in paths])


def is_complete(path: str | os.PathLike[str], key: str | None = None) -> bool:
    """Whether a finished feature file is there: sidecar present, hash equal, key equal when one is given."""
    try:
        sidecar = read_json(sidecar_path(path))
        recorded, cached = sidecar["sha256"], sidecar["cache_key"]
    except (InputError, KeyError, TypeError):
        return False
    if not Path(path).is_file() or (key is not None and cached != key):
        return False
    return sha256_file(path) == recorded


_VERIFIED: dict[tuple[int, ...], str] = {}
"""Files whose hash this process has checked, by device, inode, size and times, so that a training that reads
its bags every epoch hashes each once."""


def read_features(path: str | os.PathLike[str]) -> FeatureBag:
    """Read a feature file that its sidecar vouches for: one read of the whole file, hashed on first use.

    Raises:
        InputError: no sidecar, another content than the sidecar's hash, or a layout that is not a feature
            file's. The file alone is never trusted: it may be cut short.
    """
    path = Path(path)
    if not sidecar_path(path).is_file():
        raise InputError("has no sidecar; the extraction did not finish", file=path)
    try:
        recorded = str(read_json(sidecar_path(path))["sha256"])
        with open(path, "rb") as handle:
            state = os.fstat(handle.fileno())
            whole = np.fromfile(handle, np.uint8)
    except (OSError, InputError, KeyError, TypeError):
        raise InputError("does not match its sidecar; extract it again", file=path) from None
    seen = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    first = _VERIFIED.get(seen) != recorded
    if first and hashlib.sha256(whole).hexdigest() != recorded:
        raise InputError("does not match its sidecar; extract it again", file=path)
    bag = _parse(path, whole)
    (check_bag if first else _check_layout)(bag)
    _VERIFIED[seen] = recorded
    return bag


def _parse(path: Path, whole: np.ndarray) -> FeatureBag:
    """The datasets as views into the file's bytes; HDF5 itself reads only the header and the attributes."""
    import h5py

    def array(dataset: Any) -> np.ndarray:
        start = dataset.id.get_offset()
        if start is None:  # empty, or not contiguous
            return dataset[()]
        count = int(np.prod(dataset.shape))
        return np.frombuffer(whole.data, dataset.dtype, count, start).reshape(dataset.shape)

    try:
        with h5py.File(path, "r", locking=False) as handle:
            return FeatureBag(
                array(handle["features"]),
                array(handle["coords"]),
                {name: _plain(value) for name, value in handle.attrs.items()},
            )
    except (OSError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"is not a feature file ({error})", file=path) from None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
