"""Feature files in and out: other tools' files into this project's layout, this project's into theirs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import atomic_path
from acpbench.core.ids import check_id
from acpbench.features.foreign import UNKNOWN, read_any_features
from acpbench.features.registry import EncoderSpec
from acpbench.features.store import FeatureBag, cache_key, sidecar_path, write_features
from acpbench.slides.coords import read_coords

FOREIGN_SUFFIXES = (".h5", ".pt", ".npz")


def import_file(
    path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    encoder: str | None = None,
    slide_id: str | None = None,
    **options: Any,
) -> Path:
    """Write a foreign feature file as ``<out_dir>/<slide_id>.h5`` with its sidecar.

    Args:
        path: see :func:`acpbench.features.foreign.read_any_features`, which takes ``options``.
        encoder: encoder id to write; needed where the file does not name one.
        slide_id: identifier to write; default the file's own name for the slide.

    Raises:
        InputError: what reading raises; no encoder; tiles whose size at level 0 is not known, since nothing
            could be drawn in its place; a file that is already there under that name.
    """
    bag = read_any_features(path, **options)
    attrs = dict(bag.attrs)
    attrs["slide_id"] = check_id(slide_id or str(attrs["slide_id"]), "slide_id")
    if encoder is None and attrs["encoder"] == "unknown":
        raise InputError("does not say which encoder made it; name one", file=path, field="encoder")
    attrs["encoder"] = check_id(encoder or str(attrs["encoder"]), "encoder")
    if len(bag.features) and not float(attrs["tile_size_level0"]) > 0:
        raise InputError(
            "does not say how large a tile is at level 0; give the patches file or tile_size_level0",
            file=path,
            field="tile_size_level0",
        )
    target = Path(out_dir) / f"{attrs['slide_id']}.h5"
    if target.exists() or sidecar_path(target).exists():
        raise InputError("is there already; two slides of one name, or an earlier import", file=target)
    write_features(target, FeatureBag(bag.features, bag.coords, attrs))
    return target


def import_slide(
    spec: EncoderSpec, coords_path: str | os.PathLike[str], out: str | os.PathLike[str]
) -> FeatureBag:
    """Features of one slide of a study from a folder of foreign files (``source.kind: files``).

    The slide's own tiling decides whether it takes part; the features and their coordinates are the file's.
    A slide without a file is excluded with that reason, as one bad slide must not stop the others.

    Args:
        spec: row with ``source: {kind: files, ref: folder}``; files are called ``<slide_id>.h5``, ``.pt`` or
            ``.npz``.
        coords_path: the slide's ``coords.h5``; gives slide id, status and level-0 spacing.
        out: target feature file.

    Raises:
        InputError: a file that cannot be read, of another width than the row's ``dim``, or of tiles at
            another spacing than the row's.
    """
    tiles = read_coords(coords_path)
    status, reason, detail = tiles.status, tiles.reason, tiles.detail
    bag: FeatureBag | None = None
    path = next((p for p in foreign_paths(spec, tiles.slide_id) if p.is_file()), None)
    if status == "ok" and path is None:
        status, reason = "unreadable", "no_feature_file"
        detail = f"no {tiles.slide_id}.h5, .pt or .npz in {spec.source.ref}"
    elif status == "ok":
        assert path is not None
        bag = read_any_features(path, mpp=tiles.mpp_x)
        status, reason, detail = bag.status, str(bag.attrs["reason"]), str(bag.attrs["detail"])
        if bag.features.shape[1] != spec.dim:
            told = f"has {bag.features.shape[1]} numbers a tile, encoder {spec.id} {spec.dim}"
            raise InputError(told, file=path)
        if bag.attrs["spacing_um"] != UNKNOWN:
            size = int(bag.attrs["tile_size_px"])
            spec.check_tiles(spacing_um=bag.attrs["spacing_um"], tile_size_px=size, allow_resize=True)
    features = np.zeros((0, spec.dim), spec.stored_dtype) if bag is None else bag.features
    coords = np.zeros((0, 2), np.int64) if bag is None else bag.coords
    attrs = {} if bag is None else dict(bag.attrs)
    digest = str(attrs.get("source_sha256", ""))
    attrs |= {
        "slide_id": tiles.slide_id,
        "slide_sha256": tiles.slide_sha256,
        "encoder": spec.id,
        "variant": spec.variant,
        "status": status,
        "reason": reason,
        "detail": detail,
        "n_bad_tiles": 0,
        "cache_key": cache_key(
            slide_sha256=tiles.slide_sha256, tiler_sha256=digest, spec=spec, weights_sha256=""
        ),
    }
    attrs.setdefault("tile_size_level0", UNKNOWN)
    found = FeatureBag(features, coords, attrs)
    write_features(out, found)
    return found


def foreign_paths(spec: EncoderSpec, slide_id: str) -> list[Path]:
    """Where the file of a slide may lie (``source.kind: files``), the first that exists is taken."""
    return [Path(spec.source.ref) / f"{slide_id}{suffix}" for suffix in FOREIGN_SUFFIXES]


def export_trident(bag: FeatureBag, out_dir: str | os.PathLike[str]) -> list[Path]:
    """Write TRIDENT's layout: ``<mag>x_<px>px_0px_overlap/`` with ``patches`` and ``features_<encoder>``.

    Magnifications are the nominal 10 / spacing, rounded, as TRIDENT stores integers; sizes come from the
    spacings themselves. TRIDENT's chunks of one tile each are kept, so that its readers see
    what they are used to.

    Raises:
        InputError: a bag without the geometry that the layout states.
    """
    place = _geometry(bag)
    spacing, mpp, size = float(bag.attrs["spacing_um"]), place["mpp"], int(bag.attrs["tile_size_px"])
    name = check_id(bag.slide_id, "slide_id")
    check_id(str(bag.attrs["encoder"]), "encoder")
    job = Path(out_dir) / f"{_magnification(spacing)}x_{size}px_0px_overlap"
    patches, features = job / "patches", job / f"features_{bag.attrs['encoder']}"
    attrs: dict[str, Any] = {
        "patch_size": size,
        "patch_size_level0": round(float(bag.attrs["tile_size_level0"])),
        "level0_magnification": _magnification(mpp),
        "target_magnification": _magnification(spacing),
        "overlap": 0,
        "name": name,
        "level0_width": int(place["slide_width_px"]),
        "level0_height": int(place["slide_height_px"]),
    }
    coords = bag.coords.astype(np.int64)
    paths = [patches / f"{name}_patches.h5", features / f"{name}.h5"]
    _write(paths[0], {"coords": (coords, 1, attrs | {"savetodir": str(job)})})
    told = {"name": name, "savetodir": str(features), "encoder": str(bag.attrs["encoder"])}
    _write(paths[1], {
        "features": (bag.features, 1, told),
        "coords": (coords, 1, attrs | {"savetodir": str(job)}),
    })  # fmt: skip
    return paths


def export_clam(bag: FeatureBag, out_dir: str | os.PathLike[str]) -> list[Path]:
    """Write CLAM's layout: ``patches/<id>.h5``, ``h5_files/<id>.h5`` and ``pt_files/<id>.pt`` (float32).

    Raises:
        InputError: a bag without the geometry that the layout states.
    """
    import torch

    place = _geometry(bag)
    name, root = check_id(bag.slide_id, "slide_id"), Path(out_dir)
    features = bag.features.astype(np.float32)
    dims = (int(place["level_width_px"]), int(place["level_height_px"]))
    downsample = float(place["level_downsample"])
    attrs = {
        "patch_size": int(place["read_size_px"]),
        "patch_level": int(place["level"]),
        "downsample": (downsample, downsample),
        "downsampled_level_dim": dims,
        "level_dim": dims,
        "name": name,
        "save_path": str(root / "patches"),
    }
    paths = [
        root / "patches" / f"{name}.h5",
        root / "h5_files" / f"{name}.h5",
        root / "pt_files" / f"{name}.pt",
    ]
    _write(paths[0], {"coords": (bag.coords.astype(np.int64), 32, attrs)})
    _write(paths[1], {"features": (features, 32, {}), "coords": (bag.coords.astype(np.int32), 32, {})})
    with atomic_path(paths[2]) as temporary:
        torch.save(torch.from_numpy(features.copy()), temporary)
    return paths


def _geometry(bag: FeatureBag) -> dict[str, float]:
    names = ["mpp", "spacing_um", "tile_size_px", "tile_size_level0", "read_size_px", "level_downsample"]
    names += ["level", "level_width_px", "level_height_px", "slide_width_px", "slide_height_px"]
    found = {name: float(bag.attrs.get(name, UNKNOWN)) for name in names}
    lacking = [name for name, value in found.items() if value < 0 or np.isnan(value)]
    if lacking:
        raise InputError(f"slide {bag.slide_id}: its feature file does not state {', '.join(lacking)}")
    height = float(bag.attrs.get("tile_size_level0_y", UNKNOWN))
    width = found["tile_size_level0"]
    if height > 0 and not np.isclose(height, width, rtol=0.01):
        raise InputError(
            f"slide {bag.slide_id}: its tiles cover {width:g} x {height:g} px of level 0, "
            "and this layout knows squares only",
            field="tile_size_level0_y",
        )
    return found


def _magnification(spacing_um: float) -> int:
    return max(1, round(10 / spacing_um))


def _write(path: Path, datasets: dict[str, tuple[np.ndarray, int, dict[str, Any]]]) -> None:
    """Datasets (values, rows a chunk, attributes), growable in their first dimension."""
    import h5py

    with atomic_path(path) as temporary, h5py.File(temporary, "w") as handle:
        for name, (values, rows, attrs) in datasets.items():
            dataset = handle.create_dataset(
                name,
                data=values,
                chunks=(rows, *values.shape[1:]),
                maxshape=(None, *values.shape[1:]),
            )
            for key, value in attrs.items():
                dataset.attrs[key] = value
