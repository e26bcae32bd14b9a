"""Pictures for people: the slide with its tissue outline and tiles, or the reason why there is none."""

from __future__ import annotations

import os

import numpy as np

from acpbench.core.files import atomic_path
from acpbench.slides.coords import TileSet

MAX_SIDE_PX = 1024
_OUTLINE = (0, 150, 70)
_GRID = (40, 90, 200)


def draw_thumbnail(
    rgb: np.ndarray,
    dimensions: tuple[int, int],
    polygons: list[object] | None = None,
    tiles: TileSet | None = None,
) -> np.ndarray:
    """Draw tissue outlines and tile borders over an overview.

    Args:
        rgb: uint8 (H, W, 3) overview of the whole slide.
        dimensions: slide ``(width, height)``, level-0 pixels.
        polygons: shapely polygons in level-0 pixels.
        tiles: tiles to draw.

    Returns:
        uint8 (h, w, 3), long side at most 1024 px.
    """
    from PIL import Image, ImageDraw

    image = Image.fromarray(rgb)
    image.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX), Image.Resampling.BOX)
    scale_x, scale_y = dimensions[0] / image.width, dimensions[1] / image.height
    draw = ImageDraw.Draw(image)
    if tiles is not None and tiles.plan is not None:
        w, h = tiles.plan.tile_width_level0, tiles.plan.tile_height_level0
        for x, y in tiles.coords.tolist():
            # Pixels are addressed by index; the far edge belongs to the next tile.
            right, bottom = (x + w) / scale_x - 1, (y + h) / scale_y - 1
            left, top = x / scale_x, y / scale_y
            draw.rectangle([left, top, max(right, left), max(bottom, top)], outline=_GRID)
    for polygon in polygons or []:
        for ring in [polygon.exterior, *polygon.interiors]:  # type: ignore[attr-defined]
            draw.line([(x / scale_x, y / scale_y) for x, y in ring.coords], fill=_OUTLINE, width=2)
    return np.asarray(image)


def placeholder(text: str, width: int = 640, height: int = 360) -> np.ndarray:
    """A plain picture that says why a slide has none."""
    import textwrap

    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, height), (238, 238, 238))
    draw = ImageDraw.Draw(image)
    printable = text.encode("ascii", "replace").decode()
    draw.rectangle([0, 0, width - 1, height - 1], outline=(150, 150, 150))
    draw.multiline_text(
        (24, 24), "No picture\n\n" + "\n".join(textwrap.wrap(printable, 60)[:12]), fill=(60, 60, 60)
    )
    return np.asarray(image)


def write_jpeg(path: str | os.PathLike[str], rgb: np.ndarray) -> None:
    """Write a JPEG atomically, quality 85."""
    from PIL import Image

    with atomic_path(path) as temporary:
        Image.fromarray(rgb).save(temporary, format="JPEG", quality=85)
