"""The tiles a model looked at most: a table and a picture of them."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import write_csv
from acpbench.slides.coords import TileSet, read_tiles
from acpbench.slides.errors import SlideError

TOP_TILES = 12
TOP_TILE_COLUMNS = [
    "rank",
    "x_level0",
    "y_level0",
    "width_level0",
    "height_level0",
    "attention",
    "times_mean",
]
_COLUMNS, _CELL_PX, _TEXT_PX, _GAP_PX = 4, 192, 16, 8


def top_tiles(coords: np.ndarray, attention: np.ndarray, k: int = TOP_TILES) -> np.ndarray:
    """Indices of the ``min(k, N)`` tiles with the highest attention, highest first, earlier tile at a tie.

    Args:
        coords: (N, 2) level-0 corners.
        attention: (N,) finite weights.

    Raises:
        InputError: numbers of tiles that differ, attention that is not finite, or ``k`` below 1.
    """
    if len(coords) != len(attention):
        raise InputError(f"{len(coords)} coords for {len(attention)} attention weights")
    if not np.isfinite(attention).all():
        raise InputError("attention is not finite")
    if k < 1:
        raise InputError(f"{k} tiles asked for; at least 1 needed", field="k")
    return np.argsort(-np.asarray(attention, float), kind="stable")[: min(k, len(attention))]


def top_tile_rows(tiles: TileSet, attention: np.ndarray, order: np.ndarray) -> list[dict[str, Any]]:
    """Table rows of chosen tiles; ``times_mean`` is attention over the slide's mean attention.

    Args:
        tiles: the slide's tiles, with their reading plan.
        attention: (N,) weights of all of them.
        order: chosen indices, first rank first.
    """
    assert tiles.plan is not None
    mean = float(np.mean(attention, dtype=np.float64))
    return [
        {
            "rank": rank,
            "x_level0": int(tiles.coords[index, 0]),
            "y_level0": int(tiles.coords[index, 1]),
            "width_level0": round(tiles.plan.tile_width_level0, 3),
            "height_level0": round(tiles.plan.tile_height_level0, 3),
            "attention": f"{float(attention[index]):.6e}",
            "times_mean": round(float(attention[index]) / mean, 3) if mean > 0 else None,
        }
        for rank, index in enumerate(order.tolist(), start=1)
    ]


def write_top_tiles(
    slide_path: str | os.PathLike[str],
    tiles: TileSet,
    attention: np.ndarray,
    picture: str | os.PathLike[str],
    table: str | os.PathLike[str],
    k: int = TOP_TILES,
) -> None:
    """Write the ``min(k, N)`` highest-attention tiles as a JPEG (rank by rank, row by row) and as a CSV.

    A slide or tile that cannot be read leaves its cell grey, or a picture that says why; the table has all.

    Args:
        slide_path: the slide.
        tiles: its tiles, in the order of ``attention``.
        attention: (N,) weights.
        picture: target JPEG.
        table: target CSV.
        k: number of tiles.

    Raises:
        InputError: as :func:`top_tiles`.
    """
    from acpbench.slides.thumbnail import placeholder, write_jpeg

    order = top_tiles(tiles.coords, attention, k)
    rows = top_tile_rows(tiles, attention, order)
    write_csv(table, TOP_TILE_COLUMNS, rows)
    chosen = dataclasses.replace(
        tiles, coords=tiles.coords[order], tissue_fractions=tiles.tissue_fractions[order]
    )
    pixels: dict[int, np.ndarray] = {}
    try:
        for batch in read_tiles(slide_path, chosen, batch_size=len(order), max_bad_fraction=1.0):
            pixels |= dict(zip(batch.indices.tolist(), batch.pixels, strict=True))
    except SlideError as error:
        write_jpeg(picture, placeholder(f"{tiles.slide_id}: {error.message}"))
        return
    write_jpeg(picture, _mosaic(rows, pixels))


def _mosaic(rows: list[dict[str, Any]], pixels: dict[int, np.ndarray]) -> np.ndarray:
    from PIL import Image, ImageDraw

    columns = min(_COLUMNS, len(rows))
    step_x, step_y = _CELL_PX + _GAP_PX, _CELL_PX + _TEXT_PX + _GAP_PX
    size = (columns * step_x + _GAP_PX, -(-len(rows) // columns) * step_y + _GAP_PX)
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)
    for index, row in enumerate(rows):
        x, y = _GAP_PX + index % columns * step_x, _GAP_PX + index // columns * step_y
        if index in pixels:
            tile = Image.fromarray(pixels[index]).resize((_CELL_PX, _CELL_PX), Image.Resampling.BILINEAR)
            canvas.paste(tile, (x, y))
        else:
            draw.rectangle([x, y, x + _CELL_PX - 1, y + _CELL_PX - 1], fill=(220, 220, 220))
            draw.text((x + 6, y + 6), "cannot be read", fill=(60, 60, 60))
        draw.text((x, y + _CELL_PX + 2), f"{row['rank']}: {float(row['attention']):.2e}", fill="black")
    return np.asarray(canvas)
