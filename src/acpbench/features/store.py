"""Feature files: one HDF5 a slide, written whole, vouched for by a sidecar that is written last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import atomic_path, read_json, sha256_file, sha256_json, write_csv, write_json
from acpbench.features.registry import EncoderSpec

INDEX_COLUMNS = ["slide_id", "encoder", "status", "n_tiles", "path", "sha256", "cache_key"]
STORE_VERSION = 1
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

    Args:
        path: target ``<slide_id>.h5``.
        bag: features already in their stored type, float16 or float32, and every attribute of the file.

    Raises:
        InputError: shapes that do not agree, features that are not finite, a missing attribute.
    """
    _check_bag(bag)
    import h5py

    path = Path(path)
    sidecar = sidecar_path(path)
    sidecar.unlink(missing_ok=True)
    with atomic_path(path) as temporary:
        with h5py.File(temporary, "w") as handle:
            # Contiguous: whole-slide and row reads are several times faster than with small chunks.
            handle.create_dataset("features", data=bag.features)
            handle.create_dataset("coords", data=bag.coords)
            for name in sorted(bag.attrs):
                value = bag.attrs[name]
                handle.attrs[name] = json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
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


def _check_bag(bag: FeatureBag) -> None:
    lacking = [name for name in ("slide_id", "status", "encoder", "cache_key") if name not in bag.attrs]
    if lacking:
        raise InputError(f"feature file without {', '.join(lacking)}")
    if bag.features.ndim != 2 or bag.coords.shape != (len(bag.features), 2):
        raise InputError(f"features {bag.features.shape} and coords {bag.coords.shape} do not agree")
    if bag.features.dtype not in (np.float16, np.float32) or bag.coords.dtype != np.int64:
        raise InputError(f"features are {bag.features.dtype} and coords {bag.coords.dtype}")
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


def read_features(path: str | os.PathLike[str]) -> FeatureBag:
    """Read a feature file that its sidecar vouches for.

    Raises:
        InputError: no sidecar, another content than the sidecar's hash, or a layout that is not a feature
            file's. The file alone is never trusted: it may be cut short.
    """
    import h5py

    path = Path(path)
    if not sidecar_path(path).is_file():
        raise InputError("has no sidecar; the extraction did not finish", file=path)
    if not is_complete(path):
        raise InputError("does not match its sidecar; extract it again", file=path)
    try:
        with h5py.File(path, "r", locking=False) as handle:
            bag = FeatureBag(
                handle["features"][()],
                handle["coords"][()],
                {name: _plain(value) for name, value in handle.attrs.items()},
            )
    except (OSError, KeyError) as error:
        raise InputError(f"is not a feature file ({error})", file=path) from None
    _check_bag(bag)
    return bag


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
