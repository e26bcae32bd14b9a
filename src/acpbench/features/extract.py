"""Features of one slide: stream its tiles, encode them, write one file."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import sha256_bytes, sha256_json
from acpbench.core.progress import track
from acpbench.features.background import read_ahead
from acpbench.features.encoders import DeferredEncoder, Encoder
from acpbench.features.store import FeatureBag, cache_key, is_complete, read_features, write_features
from acpbench.slides.coords import MAX_BAD_FRACTION, TILER_VERSION, TileSet, read_coords, read_tiles
from acpbench.slides.errors import SlideError
from acpbench.slides.reader import open_slide
from acpbench.slides.slide_files import slide_sha256


def tiler_sha256(tiles: TileSet) -> str:
    """Hash of how and where a slide is tiled: tiler version, reading plan, settings and the coordinates."""
    # A slide without tiles has none for a reason; what was found out about one says nothing of another.
    excluded = (
        {}
        if tiles.status == "ok"
        else {"status": tiles.status, "reason": tiles.reason, "detail": tiles.detail}
    )
    return sha256_json(
        excluded
        | {
            "tiler_version": TILER_VERSION,
            "requested_spacing_um": tiles.requested_spacing_um,
            "tile_size_px": tiles.tile_size_px,
            "plan": None if tiles.plan is None else dataclasses.asdict(tiles.plan),
            "settings": dict(tiles.settings),
            "coords_sha256": sha256_bytes(np.ascontiguousarray(tiles.coords, dtype="<i8").tobytes()),
        }
    )


def slide_cache_key(tiles: TileSet, encoder: Encoder | DeferredEncoder) -> str:
    """Key under which the features of these tiles are stored."""
    return cache_key(
        slide_sha256=tiles.slide_sha256,
        tiler_sha256=tiler_sha256(tiles),
        spec=encoder.spec,
        weights_sha256=encoder.weights_sha256,
    )


def extract_slide(
    slide_path: str | os.PathLike[str],
    coords_path: str | os.PathLike[str],
    encoder: Encoder | DeferredEncoder,
    out: str | os.PathLike[str],
    *,
    batch_size: int = 64,
    max_bad_fraction: float = MAX_BAD_FRACTION,
    allow_any_spacing: bool = False,
    allow_resize: bool = False,
    store_dir: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Write the features of one slide, or find that they are there already.

    An excluded slide, and one with too many unreadable tiles, gets a file with (0, D) features and its
    status; single unreadable tiles are left out and counted.

    Args:
        slide_path: the slide.
        coords_path: its ``coords.h5``; read and checked before anything is loaded.
        encoder: see :func:`acpbench.features.encoders.load_encoder`; a deferred one is loaded when the first
            tile is to be encoded.
        out: target ``<slide_id>.h5``; the sidecar ``<slide_id>.h5.json`` is written last.
        batch_size: tiles a batch; halved by itself when the GPU has no room.
        max_bad_fraction: share of unreadable tiles above which the slide is excluded.
        allow_any_spacing: accept a spacing the encoder was not made for.
        allow_resize: accept another tile size and resize.
        store_dir: folder shared between cohorts and runs, where files lie under their cache key.

    Returns:
        ``slide_id``, ``cache_key``, ``cache`` (``hit`` or ``miss``), ``n_tiles``, ``n_bad_tiles`` and
        ``status``.

    Raises:
        InputError: tiles the encoder does not take, a slide that changed since it was tiled, features that
            are not finite, or too little memory for them.
    """
    tiles = read_coords(coords_path)
    if tiles.status == "ok":
        # Before any look at the cache: what was once allowed for one run is not allowed for every run.
        assert tiles.plan is not None
        for spacing in (tiles.plan.effective_spacing_x_um, tiles.plan.effective_spacing_y_um):
            encoder.spec.check_tiles(
                spacing_um=spacing,
                tile_size_px=tiles.tile_size_px,
                allow_any_spacing=allow_any_spacing,
                allow_resize=allow_resize,
            )
    key = slide_cache_key(tiles, encoder)
    if is_complete(out, key):
        found = read_features(out)
        if found.slide_id == tiles.slide_id and _still_holds(found, tiles, max_bad_fraction):
            return _outcome(found, "hit")
    stored = None if store_dir is None else store_path(store_dir, key)
    if stored is not None and is_complete(stored, key):
        held = read_features(stored)
        if _still_holds(held, tiles, max_bad_fraction):
            bag = FeatureBag(held.features, held.coords, held.attrs | {"slide_id": tiles.slide_id})
            write_features(out, bag)
            return _outcome(bag, "hit")
    try:
        bag = _extract(
            slide_path, tiles, encoder, key, batch_size=batch_size, max_bad_fraction=max_bad_fraction
        )
    except MemoryError:
        raise InputError(
            f"no memory for {len(tiles.coords)} tiles x {encoder.spec.dim} numbers "
            f"({_stored_bytes(tiles, encoder) / 2**30:.1f} GiB); give the job more, or use a coarser grid",
            file=coords_path,
        ) from None
    if stored is not None and bag.status == "ok":
        write_features(stored, bag)
    write_features(out, bag)
    return _outcome(bag, "miss")


def _still_holds(held: FeatureBag, tiles: TileSet, max_bad_fraction: float) -> bool:
    """Whether features made earlier are what an extraction would give now.

    A failed reading is tried again: a disk recovers. The limit of unreadable tiles is this call's.
    """
    if tiles.status != "ok":
        return held.status == tiles.status
    n_bad = int(held.attrs["n_bad_tiles"])
    return held.status == "ok" and n_bad <= max_bad_fraction * (n_bad + len(held.features))


def _stored_bytes(tiles: TileSet, encoder: Encoder | DeferredEncoder) -> int:
    return len(tiles.coords) * encoder.spec.dim * np.dtype(encoder.spec.stored_dtype).itemsize


def store_path(store_dir: str | os.PathLike[str], key: str) -> Path:
    """Where the feature store keeps a key: ``<store>/<first two>/<key>.h5``."""
    if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
        raise InputError(f"{key[:70]!r} is not a cache key")
    return Path(store_dir) / key[:2] / f"{key}.h5"


def _outcome(bag: FeatureBag, cache: str) -> dict[str, Any]:
    return {
        "slide_id": bag.slide_id,
        "cache_key": str(bag.attrs["cache_key"]),
        "cache": cache,
        "n_tiles": len(bag.features),
        "n_bad_tiles": int(bag.attrs["n_bad_tiles"]),
        "status": bag.status,
    }


def _extract(
    slide_path: str | os.PathLike[str],
    tiles: TileSet,
    encoder: Encoder | DeferredEncoder,
    key: str,
    *,
    batch_size: int,
    max_bad_fraction: float,
) -> FeatureBag:
    spec = encoder.spec
    status, reason, detail, n_bad, device = tiles.status, tiles.reason, tiles.detail, 0, "none"
    # In the stored type from the start: a slide's features exist once in memory, and half as large.
    features = np.empty((len(tiles.coords) if status == "ok" else 0, spec.dim), spec.stored_dtype)
    coords = np.empty((len(features), 2), np.int64)
    n, geometry = 0, _no_geometry()
    if status == "ok":
        loaded = encoder.load() if isinstance(encoder, DeferredEncoder) else encoder
        device = loaded.device
        stream = read_tiles(slide_path, tiles, batch_size=batch_size, max_bad_fraction=max_bad_fraction)
        # The slide is hashed beside the reading; nothing is written before both have ended.
        with ThreadPoolExecutor(1) as hashing:
            digest = hashing.submit(slide_sha256, slide_path)
            try:
                geometry = _slide_geometry(slide_path, tiles)
                for found, corners in _encoded(stream, tiles, loaded):
                    with np.errstate(over="ignore"):  # beyond float16 it is infinite, which the store refuses
                        features[n : n + len(found)] = found
                    coords[n : n + len(found)] = corners
                    n += len(found)
                _check_unchanged(slide_path, digest, tiles)
            except SlideError as error:
                _check_unchanged(slide_path, digest, tiles)
                status, reason, detail, n = error.status, error.reason, error.message, 0
            except Exception:  # a slide that changed fails in any way; that is what has to be said then
                _check_unchanged(slide_path, digest, tiles)
                raise
        n_bad = stream.n_bad
    attributes = _attributes(tiles, encoder, key, status, reason, detail, n_bad)
    return FeatureBag(features[:n], coords[:n], attributes | geometry | {"device": device})


def _check_unchanged(slide_path: str | os.PathLike[str], digest: Future[str], tiles: TileSet) -> None:
    try:
        same = digest.result() == tiles.slide_sha256
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=slide_path) from None
    if not same:
        raise InputError("changed since it was tiled; tile it again", file=slide_path)


def _encoded(stream: Any, tiles: TileSet, encoder: Encoder) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Features and corners, batch by batch. One thread reads and decodes ahead, this one computes."""
    corners: deque[np.ndarray] = deque()
    total = -(-len(tiles.coords) // stream.batch_size)
    ahead = read_ahead(stream, prepare=lambda batch: (encoder.prepare(batch.pixels), batch.coords))

    def batches() -> Iterator[Any]:
        for pixels, at in track(ahead, label=f"features of {tiles.slide_id}", total=total):
            corners.append(at)
            yield pixels

    with closing(ahead):
        for features in encoder.encode_stream(batches()):
            yield features, corners.popleft()


def _no_geometry() -> dict[str, int]:
    return dict.fromkeys(("slide_width_px", "slide_height_px", "level_width_px", "level_height_px"), -1)


def _slide_geometry(slide_path: str | os.PathLike[str], tiles: TileSet) -> dict[str, int]:
    """Sizes of level 0 and of the level that is read: other tools' files state them."""
    assert tiles.plan is not None
    with open_slide(slide_path, tiles.mpp_x) as reader:
        level = reader.level_dimensions[tiles.plan.level]
        return dict(zip(_no_geometry(), (*reader.dimensions, *level), strict=True))


def _attributes(
    tiles: TileSet,
    encoder: Encoder | DeferredEncoder,
    key: str,
    status: str,
    reason: str,
    detail: str,
    n_bad: int,
) -> dict[str, Any]:
    spec, plan = encoder.spec, tiles.plan
    loaded = encoder.load() if isinstance(encoder, DeferredEncoder) and status == "ok" else encoder
    on_gpu = getattr(loaded, "device", "none") == "cuda"
    return {
        "encoder": spec.id,
        "encoder_sha256": encoder.weights_sha256,
        "variant": spec.variant,
        "transform": {
            "input_size_px": spec.input_size_px,
            "interpolation": spec.interpolation,
            "mean": spec.mean,
            "std": spec.std,
        },
        "dtype": spec.stored_dtype,
        # A CPU computes in float32 whatever the row says.
        "compute_dtype": spec.compute_dtype if on_gpu else "float32",
        "spacing_um": tiles.requested_spacing_um if plan is None else plan.effective_spacing_x_um,
        "tile_size_px": tiles.tile_size_px,
        "tile_size_level0": -1.0 if plan is None else plan.tile_width_level0,
        "tile_size_level0_y": -1.0 if plan is None else plan.tile_height_level0,
        "level": -1 if plan is None else plan.level,
        "level_downsample": -1.0 if plan is None else plan.downsample_x,
        "read_size_px": -1 if plan is None else plan.read_width_px,
        "mpp": -1.0 if tiles.mpp_x is None else tiles.mpp_x,
        "mpp_y": -1.0 if tiles.mpp_y is None else tiles.mpp_y,
        "tiler_sha256": tiler_sha256(tiles),
        "slide_id": tiles.slide_id,
        "slide_sha256": tiles.slide_sha256,
        "status": status,
        "reason": reason,
        "detail": detail,
        "n_bad_tiles": n_bad,
        "cache_key": key,
    }
