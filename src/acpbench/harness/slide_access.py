"""The slides of a run: found by id, never by a path an agent gave; pixels only, no label image."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

from acpbench.core.errors import InputError
from acpbench.core.files import read_json
from acpbench.harness.context import RunContext

if TYPE_CHECKING:
    import numpy as np

    from acpbench.slides.geometry import TilePlan
    from acpbench.slides.reader import SlideReader

MAX_SOURCE_PIXELS = 64 * 1024 * 1024
"""Largest region read from a slide in one piece (level pixels before it is shrunk)."""


class Region(NamedTuple):
    """Pixels of a slide.

    Attributes:
        rgb: uint8 (height_px, width_px, 3).
        spacing_x_um, spacing_y_um: of these pixels. level: pyramid level they come from.
        width_level0, height_level0: footprint in level-0 pixels.
    """

    rgb: np.ndarray
    spacing_x_um: float
    spacing_y_um: float
    level: int
    width_level0: float
    height_level0: float


def slide_row(context: RunContext, slide_id: str) -> dict[str, str]:
    """Row of a usable slide. Raises :class:`InputError` naming near ids for any other."""
    rows = {row["slide_id"]: row for row in context.slide_rows()}
    if slide_id not in rows:
        near = difflib.get_close_matches(slide_id, rows, 3) or sorted(rows)[:3]
        raise InputError(
            f"{slide_id[:80]!r} is not a usable slide of this run; data/slide_manifest.csv has {len(rows)}, "
            f"such as {', '.join(near)}",
            field="slide_id",
        )
    return rows[slide_id]


def slide_quality(context: RunContext, slide_id: str) -> dict[str, Any]:
    """The study's inspection of a slide (``quality.json``)."""
    return read_json(context.slides_dir / slide_id / "quality.json")


def slide_input(context: RunContext, slide_id: str) -> dict[str, Any]:
    """What the log says of a slide as an input: its id, the hash the study recorded, its size in bytes."""
    from acpbench.slides.coords import read_coords

    row = slide_row(context, slide_id)
    path = context.slides_base / row["path"]
    coords = context.slides_dir / slide_id / "coords.h5"
    digest = read_coords(coords).slide_sha256 if coords.is_file() else ""
    return {
        "path": f"slide:{slide_id}",
        "sha256": digest or None,
        "size": path.stat().st_size if path.is_file() else None,
    }


def open_cohort_slide(context: RunContext, slide_id: str) -> SlideReader:
    """Open a usable slide with the spacing that the study declared for it."""
    from acpbench.slides.reader import open_slide

    row = slide_row(context, slide_id)
    return open_slide(context.slides_base / row["path"], float(row["mpp"]) if row.get("mpp") else None)


def read_slide_region(
    reader: SlideReader, x_level0: int, y_level0: int, spacing_um: float, width_px: int, height_px: int
) -> Region:
    """Read a rectangle at a spacing, from the nearest finer level, as tiles are read.

    Raises:
        InputError: it does not lie inside the slide, or is larger than a region may be.
        SlideError: a spacing finer than the slide's, or unreadable pixels.
    """
    import numpy as np
    from PIL import Image

    from acpbench.slides.geometry import plan_tiles

    mpp_x, mpp_y = reader.require_spacing()
    plans = [
        plan_tiles(reader.level_dimensions, mpp_x, mpp_y, spacing_um, side) for side in (width_px, height_px)
    ]
    wide, high = plans
    width_level0, height_level0 = wide.tile_width_level0, high.tile_height_level0
    slide_w, slide_h = reader.dimensions
    if x_level0 + width_level0 > slide_w + 1e-6 or y_level0 + height_level0 > slide_h + 1e-6:
        raise InputError(
            f"the region covers {width_level0:.0f} x {height_level0:.0f} level-0 pixels from ({x_level0}, "
            f"{y_level0}) and leaves the slide of {slide_w} x {slide_h}; move it, make it smaller or finer",
            field="x_level0, y_level0",
        )
    if wide.read_width_px * high.read_height_px > MAX_SOURCE_PIXELS:
        raise InputError(
            f"the region needs {wide.read_width_px} x {high.read_height_px} pixels of the slide's level "
            f"{wide.level}; take a smaller one",
            field="width_px, height_px",
        )
    pixels = reader.read_region(x_level0, y_level0, wide.level, wide.read_width_px, high.read_height_px)
    image = Image.fromarray(pixels).resize((width_px, height_px), Image.Resampling.BOX)
    return Region(
        np.asarray(image),
        _effective(wide, "x"),
        _effective(high, "y"),
        wide.level,
        width_level0,
        height_level0,
    )


def _effective(plan: TilePlan, axis: str) -> float:
    return float(getattr(plan, f"effective_spacing_{axis}_um"))
