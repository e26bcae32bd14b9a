"""Tile geometry: level choice, read size and the grid. Pure, no I/O.

Three spacings are kept apart. *Requested*: what the user asked for. *Read*: that of the pyramid level the
pixels come from. *Effective*: that of the delivered tile, after resizing. Downsamples are ratios of
level dimensions and stay fractional: levels of 10001, 5001 and 2501 px have downsamples of 1.9998 and
3.9988, which integer truncation would turn into 1 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acpbench.slides.errors import SlideError

SPACING_TOLERANCE = 0.02
"""A level within this relative distance of the requested spacing counts as it and is not resized."""

MAX_REGION_PIXELS = 256 * 1024 * 1024
"""Largest region read at once (16384 x 16384)."""
_SHAPE_TOLERANCE = 0.05
_EPS = 1e-6


@dataclass(frozen=True)
class TilePlan:
    """How every tile of one slide is read.

    Attributes:
        requested_spacing_um: spacing asked for, um/px.
        tile_size_px: side of the delivered square tile.
        level: pyramid level read.
        downsample_x, downsample_y: level-0 pixels per pixel of that level.
        read_spacing_x_um, read_spacing_y_um: spacing of that level, um/px.
        read_width_px, read_height_px: size of the region read, in pixels of that level.
        effective_spacing_x_um, effective_spacing_y_um: spacing of the delivered tile, um/px.
        tile_width_level0, tile_height_level0: footprint of a tile in level-0 pixels, fractional.
    """

    requested_spacing_um: float
    tile_size_px: int
    level: int
    downsample_x: float
    downsample_y: float
    read_spacing_x_um: float
    read_spacing_y_um: float
    read_width_px: int
    read_height_px: int
    effective_spacing_x_um: float
    effective_spacing_y_um: float
    tile_width_level0: float
    tile_height_level0: float

    @property
    def resized(self) -> bool:
        """Whether the region read is resampled to the tile size."""
        return (self.read_width_px, self.read_height_px) != (self.tile_size_px, self.tile_size_px)


def level_downsamples(level_dimensions: Sequence[tuple[int, int]]) -> tuple[tuple[float, float], ...]:
    """Downsample of each level along x and y, from the dimensions alone."""
    width, height = level_dimensions[0]
    return tuple((width / w, height / h) for w, h in level_dimensions)


def odd_levels(level_dimensions: Sequence[tuple[int, int]]) -> list[int]:
    """Levels whose shape is not that of level 0: a label or macro picture stored as if it were a level."""
    odd = []
    for level, (ds_x, ds_y) in enumerate(level_downsamples(level_dimensions)):
        width, height = level_dimensions[level]
        # Formats round a level's size up or down, or to the next tile of a few pixels.
        if abs(ds_x / ds_y - 1) > _SHAPE_TOLERANCE + 2 / width + 2 / height:
            odd.append(level)
    return odd


def level_position(at_level0: int, downsample: float) -> float:
    """Where a level-0 coordinate lies on a level, in pixels of that level.

    With a fractional downsample hardly any pixel of a level starts on a whole level-0 pixel, so its level-0
    coordinate is a rounded one. A coordinate that is nearest to such a pixel means that pixel, and the
    result is whole; otherwise it lies between two pixels and stays fractional.
    """
    exact = at_level0 / downsample
    nearest = round(exact)
    return float(nearest) if abs(at_level0 - nearest * downsample) <= 0.5 + _EPS else exact


def choose_level(
    level_dimensions: Sequence[tuple[int, int]],
    mpp_x: float,
    mpp_y: float,
    requested_spacing_um: float,
    *,
    tolerance: float = SPACING_TOLERANCE,
) -> int:
    """The coarsest level that is not coarser than the requested spacing (within the relative tolerance).

    Raises:
        SlideError: ``too_coarse`` when level 0 itself is coarser. Tiles are never upsampled.
    """
    best, best_spacing = None, 0.0
    limit = requested_spacing_um * (1 + tolerance)
    odd = odd_levels(level_dimensions)
    for level, (ds_x, ds_y) in enumerate(level_downsamples(level_dimensions)):
        x, y = mpp_x * ds_x, mpp_y * ds_y
        if level in odd:
            continue
        if x <= limit and y <= limit and math.sqrt(x * y) > best_spacing:
            best, best_spacing = level, math.sqrt(x * y)
    if best is None:
        raise SlideError(
            "too_coarse",
            f"the finest level has {max(mpp_x, mpp_y):g} um/px, coarser than the requested "
            f"{requested_spacing_um:g} um/px; tiles are never upsampled",
            reason="upsampling_refused",
        )
    return best


def plan_tiles(
    level_dimensions: Sequence[tuple[int, int]],
    mpp_x: float,
    mpp_y: float,
    requested_spacing_um: float,
    tile_size_px: int,
    *,
    tolerance: float = SPACING_TOLERANCE,
) -> TilePlan:
    """Work out how tiles of ``tile_size_px`` at ``requested_spacing_um`` are read.

    When both axes of the level are within the tolerance of the requested spacing the pixels are taken as
    they are, and the effective spacing is the level's own. Otherwise a region of
    ``round(tile_size_px * requested / read)`` pixels is read along each axis and shrunk to the tile.

    Raises:
        ValueError: a spacing or size that is not positive.
        SlideError: ``too_coarse``, or ``unreadable`` where one tile would be too large a region to read.
    """
    if not (requested_spacing_um > 0 and math.isfinite(requested_spacing_um)):
        raise ValueError(f"requested spacing must be positive, got {requested_spacing_um}")
    if tile_size_px < 1:
        raise ValueError(f"tile size must be at least 1 px, got {tile_size_px}")
    if not (mpp_x > 0 and mpp_y > 0):
        raise ValueError(f"slide spacing must be positive, got {mpp_x} x {mpp_y}")
    level = choose_level(level_dimensions, mpp_x, mpp_y, requested_spacing_um, tolerance=tolerance)
    ds_x, ds_y = level_downsamples(level_dimensions)[level]
    read_x, read_y = mpp_x * ds_x, mpp_y * ds_y
    if all(abs(read / requested_spacing_um - 1) <= tolerance for read in (read_x, read_y)):
        read_w = read_h = tile_size_px
    else:
        # max(): one axis may be coarser than requested within the tolerance, and is then taken as it is.
        read_w = max(tile_size_px, math.floor(tile_size_px * requested_spacing_um / read_x + 0.5))
        read_h = max(tile_size_px, math.floor(tile_size_px * requested_spacing_um / read_y + 0.5))
    if read_w * read_h > MAX_REGION_PIXELS:
        raise SlideError(
            "unreadable",
            f"a tile at {requested_spacing_um:g} um/px needs {read_w} x {read_h} px at once: the slide has "
            "no level between",
            reason="no_coarse_level",
        )
    return TilePlan(
        requested_spacing_um=float(requested_spacing_um),
        tile_size_px=int(tile_size_px),
        level=level,
        downsample_x=ds_x,
        downsample_y=ds_y,
        read_spacing_x_um=read_x,
        read_spacing_y_um=read_y,
        read_width_px=read_w,
        read_height_px=read_h,
        effective_spacing_x_um=read_w * read_x / tile_size_px,
        effective_spacing_y_um=read_h * read_y / tile_size_px,
        tile_width_level0=read_w * ds_x,
        tile_height_level0=read_h * ds_y,
    )


def _axis(length_px: int, tile_level0: float) -> np.ndarray:
    count = math.floor((length_px + _EPS) / tile_level0)
    # Each start is computed from its index, so rounding never accumulates. The nearest level-0 pixel finds
    # the level's own pixel again (see level_position); the last tile is kept inside the slide.
    starts = np.rint(np.arange(count) * tile_level0)
    return np.minimum(starts, math.floor(length_px - tile_level0 + _EPS)).astype(np.int64)


def grid_axes(width_px: int, height_px: int, plan: TilePlan) -> tuple[np.ndarray, np.ndarray]:
    """Left and top edges of the slide's grid, level-0 pixels, int64 (columns,) and (rows,)."""
    return _axis(width_px, plan.tile_width_level0), _axis(height_px, plan.tile_height_level0)


def tile_grid(width_px: int, height_px: int, plan: TilePlan) -> np.ndarray:
    """Top-left corners of the slide's grid, level-0 pixels, int64 (N, 2) as x, y.

    One grid for the whole slide, anchored at (0, 0), so that coordinates do not depend on the tissue mask.
    Row-major: y outer, x inner. Border policy: only tiles that lie fully inside the slide.
    """
    xs, ys = grid_axes(width_px, height_px, plan)
    grid_y, grid_x = np.meshgrid(ys, xs, indexing="ij")
    return np.stack([grid_x.ravel(), grid_y.ravel()], axis=1)


def grid_fractions(
    mask: np.ndarray,
    xs: np.ndarray,
    ys: np.ndarray,
    width_level0: float,
    height_level0: float,
    scale: tuple[float, float],
) -> np.ndarray:
    """:func:`box_fractions` of a whole grid, float64 (rows, columns): one product per axis.

    Args:
        xs, ys: edges of the grid, see :func:`grid_axes`.
    """
    height, width = mask.shape
    across = _overlaps(xs / scale[0], width_level0 / scale[0], width)
    down = _overlaps(ys / scale[1], height_level0 / scale[1], height)
    # Counts are small whole numbers here, so the float64 sums are as good as exact.
    rows = down @ mask.astype(np.float64)
    return np.clip((across @ rows.T).T, 0.0, 1.0)


def _overlaps(starts: np.ndarray, length: float, n_pixels: int) -> Any:
    """Sparse (N, n_pixels): the share of each interval ``[start, start + length)`` that a pixel makes up."""
    from scipy.sparse import csr_array

    first = np.floor(starts).astype(np.int64)
    most = math.ceil(length) + 1  # pixels an interval can touch
    pixels = first[:, None] + np.arange(most)
    shares = np.minimum(pixels + 1, (starts + length)[:, None]) - np.maximum(pixels, starts[:, None])
    inside = (shares > 0) & (pixels >= 0) & (pixels < n_pixels)
    ends = np.concatenate([[0], np.cumsum(inside.sum(axis=1))])
    return csr_array((shares[inside] / length, pixels[inside], ends), shape=(len(starts), n_pixels))


def box_fractions(
    mask: np.ndarray,
    coords: np.ndarray,
    width_level0: float,
    height_level0: float,
    scale: tuple[float, float],
) -> np.ndarray:
    """Share of each tile's footprint that the mask covers, exact for fractional pixels.

    Args:
        mask: bool (H, W) over the whole slide.
        coords: (N, 2) top-left corners in level-0 pixels.
        width_level0, height_level0: footprint of a tile.
        scale: level-0 pixels per mask pixel along x and y.

    Returns:
        float64 (N,) in 0..1. Footprint beyond the mask counts as not covered.
    """
    height, width = mask.shape
    integral = np.zeros((height + 1, width + 1), dtype=np.float64)
    np.cumsum(np.cumsum(mask, axis=0, dtype=np.float64), axis=1, out=integral[1:, 1:])
    x0 = coords[:, 0] / scale[0]
    y0 = coords[:, 1] / scale[1]
    box_w, box_h = width_level0 / scale[0], height_level0 / scale[1]

    def at(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        # The integral of a piecewise-constant mask is bilinear inside each pixel.
        x, y = np.clip(x, 0, width), np.clip(y, 0, height)
        ix, iy = np.minimum(x.astype(np.int64), width - 1), np.minimum(y.astype(np.int64), height - 1)
        fx, fy = x - ix, y - iy
        return (
            integral[iy, ix] * (1 - fx) * (1 - fy)
            + integral[iy, ix + 1] * fx * (1 - fy)
            + integral[iy + 1, ix] * (1 - fx) * fy
            + integral[iy + 1, ix + 1] * fx * fy
        )

    covered = at(x0 + box_w, y0 + box_h) - at(x0, y0 + box_h) - at(x0 + box_w, y0) + at(x0, y0)
    return np.clip(covered / (box_w * box_h), 0.0, 1.0)
