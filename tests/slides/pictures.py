"""Tiny pictures and pyramids written by the tests themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

PINK = (205, 130, 180)
GLASS = (245, 244, 246)


def tissue_picture(
    width: int, height: int, boxes: list[tuple[int, int, int, int]], seed: int = 0
) -> np.ndarray:
    """uint8 (height, width, 3): glass with textured pink boxes ``(x, y, w, h)``."""
    rng = np.random.default_rng(seed)
    picture = np.empty((height, width, 3), np.float64)
    picture[:] = GLASS
    for x, y, w, h in boxes:
        patch = np.asarray(PINK) + rng.normal(0, 18, (min(h, height - y), min(w, width - x), 1))
        picture[y : y + h, x : x + w] = patch
    return np.clip(picture, 0, 255).astype(np.uint8)


def write_pyramid(
    path: Path,
    picture: np.ndarray,
    *,
    sizes: list[tuple[int, int]] = (),
    mpp: tuple[float, float] | None = (0.5, 0.5),
    compression: str | None = None,
    tile: int = 64,
) -> Path:
    """A tiled TIFF (generic-tiff to OpenSlide); ``sizes`` are (width, height) of the further levels."""
    options: dict[str, object] = {"tile": (tile, tile), "compression": compression}
    options["photometric"] = "ycbcr" if compression == "jpeg" else "rgb"
    if mpp is not None:
        options |= {"resolution": (10000 / mpp[0], 10000 / mpp[1]), "resolutionunit": "CENTIMETER"}

    def stored(rgb: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(rgb).convert("YCbCr")) if compression == "jpeg" else rgb

    with tifffile.TiffWriter(path) as tiff:
        tiff.write(stored(picture), **options)
        for size in sizes:
            small = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
            tiff.write(stored(small), subfiletype=1, **options)
    return path
