"""A slide reduced to a small picture, block by block and area-averaged."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from acpbench.core.progress import track
from acpbench.slides.errors import SlideError
from acpbench.slides.geometry import level_downsamples, odd_levels
from acpbench.slides.reader import SlideReader

MAX_BAD_BLOCKS = 0.1
"""Share of unreadable blocks above which the slide is unreadable."""

_SOURCE_BLOCK_PX = 2048


@dataclass(frozen=True)
class Overview:
    """A reduced slide.

    Attributes:
        rgb: uint8 (H, W, 3).
        readable: bool (H, W), False where the slide could not be read (white in ``rgb``).
        scale: level-0 pixels per overview pixel along x and y.
        n_blocks, n_bad_blocks: blocks read and those that failed.
    """

    rgb: np.ndarray
    readable: np.ndarray
    scale: tuple[float, float]
    n_blocks: int
    n_bad_blocks: int


def overview(reader: SlideReader, width: int, height: int) -> Overview:
    """Reduce the whole slide to ``width`` x ``height`` pixels from the nearest finer level.

    Memory stays bounded: source blocks have about 2048 px a side whatever the slide.

    Raises:
        SlideError: ``unreadable`` when more than a tenth of the blocks cannot be read.
    """
    from PIL import Image

    full_w, full_h = reader.dimensions
    width, height = max(1, min(width, full_w)), max(1, min(height, full_h))
    level, odd = 0, odd_levels(reader.level_dimensions)
    for candidate, (level_w, level_h) in enumerate(reader.level_dimensions):
        if candidate in odd:
            continue
        if level_w >= width * 0.999 and level_h >= height * 0.999:
            level = candidate if level_w <= reader.level_dimensions[level][0] else level
    level_w, level_h = reader.level_dimensions[level]
    ds_x, ds_y = level_downsamples(reader.level_dimensions)[level]
    ratio_x, ratio_y = level_w / width, level_h / height
    step_x = max(1, int(_SOURCE_BLOCK_PX / ratio_x))
    step_y = max(1, int(_SOURCE_BLOCK_PX / ratio_y))
    out = np.full((height, width, 3), 255, dtype=np.uint8)
    readable = np.ones((height, width), dtype=bool)
    blocks = bad = 0
    last: SlideError | None = None
    for top in track(range(0, height, step_y), label="reading overview", total=-(-height // step_y)):
        bottom = min(top + step_y, height)
        sy0, sy1 = top * ratio_y, min(bottom * ratio_y, level_h)
        y0, y1 = math.floor(sy0), min(math.ceil(sy1 - 1e-9), level_h)
        for left in range(0, width, step_x):
            right = min(left + step_x, width)
            sx0, sx1 = left * ratio_x, min(right * ratio_x, level_w)
            x0, x1 = math.floor(sx0), min(math.ceil(sx1 - 1e-9), level_w)
            blocks += 1
            try:
                region = reader.read_region(
                    round(x0 * ds_x), round(y0 * ds_y), level, max(x1 - x0, 1), max(y1 - y0, 1)
                )
            except SlideError as error:
                bad, last = bad + 1, error
                readable[top:bottom, left:right] = False
                continue
            box = (sx0 - x0, sy0 - y0, min(sx1 - x0, region.shape[1]), min(sy1 - y0, region.shape[0]))
            small = Image.fromarray(region).resize(
                (right - left, bottom - top), Image.Resampling.BOX, box=box
            )
            out[top:bottom, left:right] = np.asarray(small)
    if last is not None and bad > MAX_BAD_BLOCKS * blocks:
        raise SlideError(
            "unreadable",
            f"{bad} of {blocks} regions fail; {last.message}",
            reason=last.reason,
            file=reader.path,
        )
    return Overview(out, readable, (full_w / width, full_h / height), blocks, bad)


def overview_size(
    dimensions: tuple[int, int],
    mpp: tuple[float, float] | None,
    *,
    spacing_um: float,
    min_side: int,
    max_side: int,
) -> tuple[int, int]:
    """Overview size for about ``spacing_um`` um/px, square in micrometres.

    Small slides are shown finer, so that the long side has ``min_side`` pixels (never finer than level 0),
    and huge ones coarser (``max_side``). Without a spacing the long side is ``min_side``.
    """
    width, height = dimensions
    mpp_x, mpp_y = mpp or (1.0, 1.0)
    width_um, height_um = width * mpp_x, height * mpp_y
    long_um = max(width_um, height_um)
    step = min(spacing_um, long_um / min_side) if mpp else long_um / min_side
    step = max(step, long_um / max_side, mpp_x, mpp_y)
    return max(1, round(width_um / step)), max(1, round(height_um / step))
