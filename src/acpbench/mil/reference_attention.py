"""Held-out attention of one slide: as a picture, as its top tiles, and as objects for QuPath."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, write_csv, write_text
from acpbench.mil.overlay import attention_picture
from acpbench.mil.top_tiles import TOP_TILE_COLUMNS, TOP_TILES, write_top_tiles
from acpbench.slides.coords import TileSet, read_coords


def held_out_attention(
    attention_files: Sequence[str | os.PathLike[str]], slide_id: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """(N, 2) corners and (N,) attention of a slide, from the fold that tested it; ``None`` from no fold.

    Raises:
        InputError: corners missing, or another number of them than of weights.
    """
    import h5py

    for path in attention_files:
        with h5py.File(path, "r", locking=False) as handle:
            if slide_id not in handle:
                continue
            group = handle[slide_id]
            if "coords" not in group:
                raise InputError(f"attention of slide {slide_id!r} has no coords", file=path)
            coords, attention = group["coords"][()], group["attention"][()]
        if len(coords) != len(attention):
            raise InputError(
                f"{len(attention)} attention weights for {len(coords)} tiles of slide {slide_id!r}", file=path
            )
        return coords, attention
    return None


def tiles_of(coords_file: str | os.PathLike[str], corners: np.ndarray) -> TileSet:
    """The slide's tiles at these corners; fewer than were laid where some could not be read.

    Raises:
        InputError: a corner that is not a tile of the slide.
    """
    tiles = read_coords(coords_file)
    place = {tuple(corner): index for index, corner in enumerate(tiles.coords.tolist())}
    found = [place.get(tuple(corner), -1) for corner in corners.tolist()]
    if tiles.plan is None or -1 in found:
        raise InputError("attention is of other tiles than the slide's", file=coords_file)
    return dataclasses.replace(
        tiles, coords=tiles.coords[found], tissue_fractions=tiles.tissue_fractions[found]
    )


def draw_reference_attention(
    labels_csv: str | os.PathLike[str],
    attention_files: Sequence[str | os.PathLike[str]],
    features_sidecar: str | os.PathLike[str],
    coords_file: str | os.PathLike[str],
    thumbnail: str | os.PathLike[str],
    quality: str | os.PathLike[str],
    slide_path: str | os.PathLike[str],
    slide_id: str,
    out: str | os.PathLike[str],
    top_picture: str | os.PathLike[str],
    top_table: str | os.PathLike[str],
    n_top: int = TOP_TILES,
) -> None:
    """Overlay and top tiles of one slide's held-out attention; without any, pictures that say why.

    Args:
        labels_csv: label table (a slide that is not in it took no part).
        attention_files: ``attention.h5`` of every fold; the one that tested the slide holds it.
        features_sidecar: ``<slide_id>.h5.json`` of the slide's features.
        coords_file: its ``coords.h5``, which has the size of a tile in both directions.
        thumbnail, quality: of the slide.
        slide_path: the slide, from which the top tiles are read.
        slide_id: the slide.
        out: target JPEG of the overlay.
        top_picture, top_table: target JPEG and CSV of the top tiles.
        n_top: how many of them.

    Raises:
        InputError: attention and features are of different tiles, or as
            :func:`acpbench.mil.overlay.attention_picture`.
    """
    from acpbench.features.store import read_features
    from acpbench.slides.thumbnail import placeholder, write_jpeg

    held = held_out_attention(attention_files, slide_id)
    if held is None:
        listed = {row["slide_id"] for row in read_csv(labels_csv)}
        why = "no attention was recorded" if slide_id in listed else "not part of the labelled cohort"
        for picture in (out, top_picture):
            write_jpeg(picture, placeholder(f"{slide_id}: {why}"))
        write_csv(top_table, TOP_TILE_COLUMNS, [])
        return
    coords, attention = held
    features = Path(features_sidecar).with_suffix("")
    if not np.array_equal(coords, read_features(features).coords):
        raise InputError(
            f"attention of slide {slide_id!r} is of other tiles than its features", file=features
        )
    tiles = tiles_of(coords_file, coords)
    assert tiles.plan is not None
    size = (tiles.plan.tile_width_level0, tiles.plan.tile_height_level0)
    attention_picture(thumbnail, quality, features, attention, out, tile_size_level0=size)
    write_top_tiles(slide_path, tiles, attention, top_picture, top_table, n_top)


def export_attention(
    attention_files: Sequence[str | os.PathLike[str]],
    coords_file: str | os.PathLike[str],
    slide_id: str,
    out: str | os.PathLike[str],
) -> None:
    """Write a slide's held-out attention as GeoJSON for QuPath: one detection a tile, in level-0 pixels.

    Measurements: ``attention`` (sums to 1 over the patient's slides) and ``attention_rank`` (share of the
    slide's tiles with less attention, 0 to 1), which QuPath's measurement maps colour by. A slide without
    attention gives a collection without features. The same attention gives the same bytes.

    Args:
        attention_files: ``attention.h5`` of every fold.
        coords_file: the slide's ``coords.h5``.
        slide_id: the slide.
        out: target ``.geojson``.

    Raises:
        InputError: attention of other tiles than the slide's.
    """
    from scipy.stats import rankdata

    held = held_out_attention(attention_files, slide_id)
    lines = []
    if held is not None:
        coords, attention = held
        plan = tiles_of(coords_file, coords).plan
        assert plan is not None
        rank = (rankdata(attention, method="min") - 1) / max(len(attention) - 1, 1)
        for index, (x, y) in enumerate(coords.tolist()):
            feature = _detection(
                f"{slide_id}/attention/{index}",
                (x, y, x + plan.tile_width_level0, y + plan.tile_height_level0),
                {"attention": float(attention[index]), "attention_rank": round(float(rank[index]), 6)},
            )
            lines.append(json.dumps(feature, separators=(",", ":"), allow_nan=False))
    write_text(out, '{"type":"FeatureCollection","features":[\n' + ",\n".join(lines) + "\n]}\n")


def _detection(
    name: str, box: tuple[float, float, float, float], measurements: dict[str, float]
) -> dict[str, Any]:
    left, top, right, bottom = (round(edge, 2) for edge in box)
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        "geometry": {
            "type": "Polygon",
            "coordinates": [[[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]],
        },
        "properties": {"objectType": "detection", "measurements": measurements},
    }
