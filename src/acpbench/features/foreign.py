"""Feature files of other tools, read as they are: TRIDENT, CLAM, STAMP, AtlasPatch and slide2vec.

What a file is, is decided by what is in it. Coordinates are never made up: where a layout keeps them in
another file, that file must be there. Geometry comes from the file's own attributes. Magnifications that a
file states are not taken for a spacing; a spacing follows from the level-0 spacing, which the caller gives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import read_json, sha256_file, sha256_json
from acpbench.features.foreign_arrays import (
    HDF5_ERRORS,
    MAX_BYTES,
    check_dataset,
    check_link,
    item,
    read_array,
    read_npz,
)
from acpbench.features.store import FeatureBag, check_bag, read_features
from acpbench.slides.spacing import plausible

UNKNOWN = -1.0
"""A length or spacing that the file does not state."""


@dataclass(frozen=True)
class _Found:
    """What a reader found; ``coords`` in level-0 px (float or int), lengths in px."""

    format: str
    features: Any
    coords: Any
    encoder: str = "unknown"
    name: str = ""
    tile_size_level0: float = UNKNOWN
    tile_size_px: float = UNKNOWN
    spacing_um: float = UNKNOWN


def read_any_features(
    path: str | os.PathLike[str],
    *,
    coords_path: str | os.PathLike[str] | None = None,
    feature: str | None = None,
    mpp: float | None = None,
    tile_size_level0: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> FeatureBag:
    """Read a feature file of this project, TRIDENT, CLAM, STAMP, AtlasPatch or slide2vec.

    Args:
        path: ``.h5``, ``.pt`` or ``.npz``.
        coords_path: file with the coordinates, for the layouts that keep them apart: CLAM's or TRIDENT's
            patches file, hs2p's ``<id>.coordinates.npz``. Without it the places where CLAM and slide2vec
            put them are looked at.
        feature: name of the features to take, where a file (AtlasPatch) has several.
        mpp: spacing of level 0, um/px; needed for STAMP, whose coordinates are micrometres.
        tile_size_level0: side of a tile in level-0 px, where the file does not state it.
        max_bytes: largest array that is read.

    Returns:
        (N, D) features in float16 or float32 as stored (anything else as float32), (N, 2) int64 level-0
        ``coords``, and attributes: ``slide_id``, ``status``, ``encoder``, ``source_format``,
        ``source_sha256``, ``tile_size_level0`` (px), ``tile_size_px``, ``spacing_um`` and ``mpp``; a number
        that is not known is −1.

    Raises:
        InputError: none of these layouts, no coordinates, features and coordinates of different number,
            values that are not finite, or an array larger than ``max_bytes``.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("is not a regular file" if path.exists() else "file does not exist", file=path)
    if mpp is not None and not plausible(mpp):
        raise InputError(f"mpp {mpp} um/px is not plausible", field="mpp")
    if path.suffix in (".pt", ".npz"):
        found = _read_array_file(path, coords_path, max_bytes)
    else:
        own = _read_hdf5(path, coords_path, feature, mpp, max_bytes)
        if isinstance(own, FeatureBag):
            return own
        found = own
    return _bag(path, found, coords_path, mpp, tile_size_level0)


def _bag(
    path: Path,
    found: _Found,
    coords_path: str | os.PathLike[str] | None,
    mpp: float | None,
    tile_size_level0: float | None,
) -> FeatureBag:
    features = np.asarray(found.features)
    if features.ndim == 3 and features.shape[0] == 1:
        features = features[0]
    if features.ndim != 2 or features.dtype.kind != "f":
        raise InputError(f"features are {features.dtype} {features.shape}; expected (N, D)", file=path)
    if features.dtype not in (np.float16, np.float32):
        features = features.astype(np.float32)
    coords = np.asarray(found.coords)
    if coords.ndim != 2 or coords.shape[1] < 2 or len(coords) != len(features):
        raise InputError(
            f"features {features.shape} and coordinates {coords.shape} do not belong together", file=path
        )
    coords = coords[:, :2]
    if not np.isfinite(coords).all():
        raise InputError("has coordinates that are not finite", file=path, field="coords")
    if len(coords) and not 0 <= coords.min() <= coords.max() < 2**31:
        raise InputError("has coordinates that no slide has", file=path, field="coords")
    side = float(tile_size_level0) if tile_size_level0 is not None else found.tile_size_level0
    spacing = found.spacing_um
    if spacing == UNKNOWN and mpp is not None and side > 0 and found.tile_size_px > 0:
        spacing = mpp * side / found.tile_size_px
    digest = sha256_file(path)
    where = None if coords_path is None else sha256_file(coords_path)
    attrs = {
        "slide_id": found.name or _stem(path),
        "status": "ok" if len(features) else "empty_tissue",
        "reason": "" if len(features) else "no_tiles",
        "detail": "" if len(features) else f"the {found.format} file holds no tile",
        "encoder": found.encoder,
        "source_format": found.format,
        "source_sha256": digest,
        "tile_size_level0": side,
        "tile_size_px": found.tile_size_px,
        "spacing_um": spacing,
        "mpp": UNKNOWN if mpp is None else float(mpp),
        "n_bad_tiles": 0,
    }
    key = {"foreign": digest, "coords": where, **{k: v for k, v in attrs.items() if k != "slide_id"}}
    bag = FeatureBag(
        np.ascontiguousarray(features),
        np.rint(coords).astype(np.int64),
        attrs | {"cache_key": sha256_json(key), "dtype": str(features.dtype)},
    )
    check_bag(bag)
    return bag


def _stem(path: Path) -> str:
    """Slide id of a file name; only the last suffix goes, so ``A.B.h5`` is ``A.B``."""
    return path.stem


def _read_hdf5(
    path: Path,
    coords_path: str | os.PathLike[str] | None,
    feature: str | None,
    mpp: float | None,
    max_bytes: int,
) -> _Found | FeatureBag:
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as handle:
            attrs = {name: item(value) for name, value in handle.attrs.items()}
            if "cache_key" in attrs:
                return read_features(path)
            names = set(handle)
            if "features" in names:
                check_link(handle, "features", path)
            if "feats" in names:
                return _stamp(path, handle, attrs, mpp, max_bytes)
            if "features" in names and handle.get("features", getclass=True) is h5py.Group:
                return _atlaspatch(path, handle, attrs, feature, max_bytes)
            if "features" in names:
                return _trident_or_clam(path, handle, coords_path, max_bytes)
    except InputError:
        raise
    except HDF5_ERRORS as error:
        raise InputError(f"is not a readable HDF5 file ({error})", file=path) from None
    raise InputError(
        f"is no feature file that is known: it holds {', '.join(sorted(names)) or 'nothing'}; expected "
        "features and coords (TRIDENT, CLAM), feats (STAMP) or features/<name> (AtlasPatch)",
        file=path,
    )


def _stamp(path: Path, handle: Any, attrs: Mapping[str, Any], mpp: float | None, max_bytes: int) -> _Found:
    if "coords" not in handle:
        raise InputError("has no coordinates (dataset coords)", file=path)
    coords = np.asarray(check_dataset(handle, "coords", path, max_bytes)[()], np.float64)
    unit = str(attrs.get("unit", "um"))
    if unit not in ("um", "px"):
        raise InputError(f"coordinates are in {unit!r}; expected um", file=path)
    if unit == "um" and mpp is None:
        raise InputError("has coordinates in micrometres; give the spacing of level 0 (mpp)", file=path)
    side_um, side_px = (float(attrs.get(name, UNKNOWN)) for name in ("tile_size_um", "tile_size_px"))
    return _Found(
        "stamp",
        check_dataset(handle, "feats", path, max_bytes)[()],
        coords / mpp if unit == "um" and mpp else coords,
        encoder=str(attrs.get("extractor", "unknown")),
        tile_size_level0=side_um / mpp if side_um > 0 and mpp else UNKNOWN,
        tile_size_px=side_px,
        spacing_um=side_um / side_px if side_um > 0 and side_px > 0 else UNKNOWN,
    )


def _atlaspatch(
    path: Path, handle: Any, attrs: Mapping[str, Any], feature: str | None, max_bytes: int
) -> _Found:
    held = sorted(handle["features"])
    if feature is None and len(held) == 1:
        feature = held[0]
    if feature not in held:
        raise InputError(
            f"holds the features {', '.join(held) or '(none)'}; name one of them", file=path, field="feature"
        )
    if "coords" not in handle:
        raise InputError("has no coordinates (dataset coords)", file=path)
    return _Found(
        "atlaspatch",
        check_dataset(handle["features"], str(feature), path, max_bytes)[()],
        check_dataset(handle, "coords", path, max_bytes)[()],
        encoder=str(feature),
        tile_size_level0=float(attrs.get("patch_size_level0", UNKNOWN)),
        tile_size_px=float(attrs.get("patch_size", UNKNOWN)),
    )


def _trident_or_clam(
    path: Path, handle: Any, coords_path: str | os.PathLike[str] | None, max_bytes: int
) -> _Found:
    dataset = check_dataset(handle, "features", path, max_bytes)
    told = {name: item(value) for name, value in dataset.attrs.items()}
    coords, place = None, {}
    if "coords" in handle:
        held = check_dataset(handle, "coords", path, max_bytes)
        coords, place = held[()], {name: item(value) for name, value in held.attrs.items()}
    if coords_path is not None:
        beside, place = _patches_file(Path(coords_path), max_bytes)
        if coords is not None and not np.array_equal(coords, beside):
            raise InputError(f"has other coordinates than {coords_path}", file=path)
        coords = beside
    if coords is None:
        raise InputError("has no coordinates (dataset coords); give the patches file", file=path)
    return _Found(
        "trident" if "encoder" in told or "patch_size_level0" in place else "clam",
        dataset[()],
        coords,
        encoder=str(told.get("encoder", "unknown")),
        name=_stem(path),
        **_patch_geometry(place),
    )


def _patches_file(path: Path, max_bytes: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Coordinates and attributes of a patches file of CLAM or TRIDENT, or of a feature file with both."""
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as handle:
            if "coords" not in handle:
                raise InputError("has no dataset coords", file=path)
            dataset = check_dataset(handle, "coords", path, max_bytes)
            return dataset[()], {name: item(value) for name, value in dataset.attrs.items()}
    except InputError:
        raise
    except HDF5_ERRORS as error:
        raise InputError(f"is not a readable HDF5 file ({error})", file=path) from None


def _patch_geometry(attrs: Mapping[str, Any]) -> dict[str, float]:
    """Tile sizes from TRIDENT's ``patch_size_level0`` or from CLAM's ``patch_size`` × ``downsample``."""
    size = float(attrs.get("patch_size", UNKNOWN))
    if "patch_size_level0" in attrs:
        return {"tile_size_px": size, "tile_size_level0": float(attrs["patch_size_level0"])}
    if size > 0 and "downsample" in attrs:
        downsample = float(np.ravel(np.asarray(attrs["downsample"], np.float64))[0])
        return {"tile_size_px": size, "tile_size_level0": size * downsample}
    return {"tile_size_px": size}


def _read_array_file(path: Path, coords_path: str | os.PathLike[str] | None, max_bytes: int) -> _Found:
    meta_path = path.with_name(f"{path.stem}.meta.json")
    features, index = read_array(path, max_bytes)
    if not meta_path.is_file():
        if path.suffix == ".npz":
            raise InputError(f"has no {meta_path.name} beside it", file=path)
        return _clam_tensor(path, features, coords_path, max_bytes)
    meta = read_json(meta_path)
    if not isinstance(meta, dict):
        raise InputError("expected a mapping", file=meta_path)
    name = str(meta.get("sample_id", path.stem))
    beside = path.parent.parent / "tiles" / f"{path.stem}.coordinates.npz"
    where = Path(coords_path) if coords_path is not None else beside
    if not where.is_file():
        raise InputError(
            f"has no coordinates; give hs2p's {path.stem}.coordinates.npz (not found at {where})", file=path
        )
    tiles = read_npz(where, max_bytes)
    if not {"x", "y"} <= set(tiles):
        raise InputError("holds no x and y", file=where)
    if index is not None and "tile_index" in tiles and not np.array_equal(index, tiles["tile_index"]):
        raise InputError(f"has another tile_index than {where}", file=path)
    about = where.with_name(where.name.removesuffix(".npz") + ".meta.json")
    tiling = read_json(about) if about.is_file() else {}
    if isinstance(tiling, dict) and isinstance(tiling.get("tiling"), dict):
        tiling = tiling["tiling"]

    def number(*names: str) -> float:
        for source in (meta, tiling if isinstance(tiling, dict) else {}):
            for name in names:
                if isinstance(source.get(name), int | float):
                    return float(source[name])
        return UNKNOWN

    return _Found(
        "slide2vec",
        features,
        np.stack([tiles["x"], tiles["y"]], axis=1),
        encoder=str(meta.get("encoder_name", "unknown")),
        name=name,
        tile_size_level0=number("tile_size_lv0"),
        tile_size_px=number("requested_tile_size_px", "target_tile_size_px"),
        spacing_um=number("requested_spacing_um", "target_spacing_um"),
    )


def _clam_tensor(
    path: Path, features: np.ndarray, coords_path: str | os.PathLike[str] | None, max_bytes: int
) -> _Found:
    beside = path.parent.parent / "h5_files" / f"{path.stem}.h5"
    where = Path(coords_path) if coords_path is not None else beside
    if not where.is_file():
        raise InputError(
            f"holds features alone; give the file with their coordinates (not found at {where})", file=path
        )
    coords, place = _patches_file(where, max_bytes)
    return _Found("clam", features, coords, name=path.stem, **_patch_geometry(place))
