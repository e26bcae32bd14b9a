"""Attention over a thumbnail, and its agreement with a tile-level truth."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import atomic_path, read_json
from acpbench.mil.cells import parse_number

_COLOUR_MAP = "viridis"
"""Perceptually uniform, readable in grey and with colour-vision deficiency."""
_LEGEND_PX = 44


def attention_overlay(
    thumbnail: str | os.PathLike[str] | np.ndarray,
    coords: np.ndarray,
    attention: np.ndarray,
    *,
    tile_size_level0: float | tuple[float, float],
    slide_size_level0: tuple[int, int],
    out: str | os.PathLike[str],
    opacity: float = 0.55,
    max_side_px: int = 1600,
) -> None:
    """Write a JPEG of the thumbnail with every tile tinted by its attention, and a legend below.

    Colours run from the slide's lowest to its highest attention; the legend prints both numbers.

    Args:
        thumbnail: image file, or (H, W), (H, W, 3) or (H, W, 4) uint8, the whole slide.
        coords: (N, 2) level-0 corners x, y.
        attention: (N,) finite weights.
        tile_size_level0: side of a tile in level-0 pixels, or width and height where they differ.
        slide_size_level0: slide width and height in level-0 pixels.
        out: target JPEG.
        opacity: of the tint, in [0, 1].
        max_side_px: the thumbnail is reduced to this longest side.

    Raises:
        InputError: numbers of tiles that differ, no tile, a tile outside the slide, coords or attention not
            finite, a thumbnail whose sides have not the slide's proportions.
    """
    from PIL import Image, ImageDraw

    coords, attention = np.asarray(coords), np.asarray(attention, float)
    tile = np.broadcast_to(np.asarray(tile_size_level0, float), 2)
    if not (tile > 0).all():
        raise InputError(
            f"tile of {tile[0]:g} x {tile[1]:g} level-0 pixels; the features do not say its size"
        )
    if coords.ndim != 2 or coords.shape[1] != 2 or len(coords) != len(attention) or not len(coords):
        raise InputError(f"coords {coords.shape} and attention {attention.shape} do not agree or are empty")
    for name, values in (("coords", coords.astype(float)), ("attention", attention)):
        if not np.isfinite(values).all():
            raise InputError(f"{name}: not every number is finite")
    width, height = slide_size_level0
    if (coords < 0).any() or (coords[:, 0] >= width).any() or (coords[:, 1] >= height).any():
        raise InputError(f"a tile lies outside the slide of {width} x {height} px")
    image = _image(thumbnail)
    # Sides are rounded, and some makers cut a pixel row; a label or a cropped view would shift every tile.
    if abs(image.width / width * height - image.height) > 2 + 0.02 * image.height:
        raise InputError(
            f"a thumbnail of {image.width} x {image.height} px shows no slide of {width} x {height} px",
            file=None if isinstance(thumbnail, np.ndarray) else thumbnail,
        )
    image.thumbnail((max_side_px, max_side_px), Image.Resampling.LANCZOS)
    # Each axis has its own ratio: a thumbnail's sides are rounded separately.
    ratio = np.array([image.width / width, image.height / height])
    low, high = float(attention.min()), float(attention.max())
    level = (attention - low) / (high - low) if high > low else np.zeros(len(attention))
    colours = _colours(level)
    # A corner in the last half pixel still has a pixel to tint.
    corners = np.minimum(np.rint(coords * ratio).astype(int), [image.width - 1, image.height - 1])
    ends = np.maximum(np.rint((coords + tile) * ratio).astype(int), corners + 1)
    pixels = np.asarray(image, dtype=np.float32).copy()
    for (x0, y0), (x1, y1), colour in zip(corners, ends, colours, strict=True):
        region = pixels[y0:y1, x0:x1]
        region += (colour - region) * opacity
    canvas = Image.new("RGB", (image.width, image.height + _LEGEND_PX), "white")
    canvas.paste(Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8)), (0, 0))
    bar_width = max(image.width - 20, 1)
    bar = np.broadcast_to(_colours(np.linspace(0, 1, bar_width))[None], (12, bar_width, 3))
    canvas.paste(Image.fromarray(np.ascontiguousarray(bar).astype(np.uint8)), (10, image.height + 6))
    draw = ImageDraw.Draw(canvas)
    text_y = image.height + 22
    draw.text((10, text_y), f"{low:.2e}", fill="black")
    highest = f"{high:.2e}"
    draw.text((image.width - 10 - draw.textlength(highest), text_y), highest, fill="black")
    if image.width > 260:
        title = "attention of a tile"
        draw.text(((image.width - draw.textlength(title)) / 2, text_y), title, fill="black")
    with atomic_path(out) as temporary:
        canvas.save(temporary, format="JPEG", quality=88)


def _image(thumbnail: str | os.PathLike[str] | np.ndarray) -> Any:
    from PIL import Image

    if isinstance(thumbnail, np.ndarray):
        return Image.fromarray(thumbnail).convert("RGB")
    try:
        return Image.open(Path(thumbnail)).convert("RGB")
    except (OSError, ValueError) as error:
        raise InputError(f"is not a readable thumbnail ({type(error).__name__})", file=thumbnail) from None


def _colours(level: np.ndarray) -> np.ndarray:
    """(N,) in [0, 1] → (N, 3) RGB in 0..255."""
    from matplotlib import colormaps

    return np.rint(colormaps[_COLOUR_MAP](level)[:, :3] * 255).astype(np.float32)


def attention_auroc(
    truth: Sequence[Mapping[str, Any]], coords: np.ndarray, attention: np.ndarray
) -> tuple[float | None, str]:
    """How well attention ranks the tiles that hold the target above those that do not.

    Args:
        truth: rows with ``x_level0``, ``y_level0`` (tile corner) and ``positive`` (0 or 1).
        coords: (N, 2) level-0 corners.
        attention: (N,) weights.

    Returns:
        AUROC over the tiles that both have, and an empty note; or ``None`` and why.

    Raises:
        InputError: numbers of tiles that differ, attention that is not finite, a truth cell that is not 0 or
            1, a corner that is not a whole number, or two truths of one tile that contradict each other.
    """
    from sklearn.metrics import roc_auc_score

    if len(coords) != len(attention):
        raise InputError(f"{len(coords)} coords for {len(attention)} attention weights")
    if not np.isfinite(np.asarray(attention, float)).all():
        raise InputError("attention is not finite")
    known: dict[tuple[int, int], int] = {}
    for row in truth:
        positive = parse_number(row["positive"])
        if positive not in (0.0, 1.0):
            raise InputError(f"tile truth {row['positive']!r}; expected 0 or 1", field="positive")
        corner = _corner(row, "x_level0"), _corner(row, "y_level0")
        if known.setdefault(corner, int(positive)) != int(positive):
            raise InputError(f"the tile at {corner} is both positive and negative", field="positive")
    pairs = [
        (known[int(x), int(y)], float(weight))
        for (x, y), weight in zip(np.asarray(coords), attention, strict=True)
        if (int(x), int(y)) in known
    ]
    if not pairs:
        return None, "no tile has a truth"
    labels = [label for label, _ in pairs]
    if len(set(labels)) < 2:
        return None, "only one class among the tiles"
    return float(roc_auc_score(labels, [weight for _, weight in pairs])), ""


def _corner(row: Mapping[str, Any], column: str) -> int:
    number = parse_number(row[column])
    if number is None or number != int(number):
        raise InputError(f"{row[column]!r} is not a whole number of level-0 pixels", field=column)
    return int(number)


def attention_picture(
    thumbnail: str | os.PathLike[str],
    quality: str | os.PathLike[str],
    features: str | os.PathLike[str],
    attention: np.ndarray,
    out: str | os.PathLike[str],
    *,
    tile_size_level0: tuple[float, float] | None = None,
) -> None:
    """:func:`attention_overlay` from the files of one slide.

    Args:
        thumbnail: thumbnail of the whole slide.
        quality: its quality record, which has the slide's size (``width_px``, ``height_px``).
        features: its feature file, which has the tiles' corners and level-0 size.
        attention: (N,) weights in the order of the feature file's tiles.
        out: target JPEG.
        tile_size_level0: width and height of a tile in level-0 pixels; from the feature file when ``None``.

    Raises:
        InputError: as :func:`attention_overlay`, or a quality record without the slide's size.
    """
    from acpbench.features.store import read_features

    bag = read_features(features)
    if tile_size_level0 is None:
        width = float(bag.attrs["tile_size_level0"])
        tile_size_level0 = width, float(bag.attrs.get("tile_size_level0_y", width))
    attention_overlay(
        thumbnail,
        bag.coords,
        attention,
        tile_size_level0=tile_size_level0,
        slide_size_level0=slide_size(quality),
        out=out,
    )


def slide_size(quality: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height of a slide in level-0 pixels, from its quality record.

    Raises:
        InputError: a record without them.
    """
    record = read_json(quality)
    size = (record.get("width_px"), record.get("height_px"))
    if not all(isinstance(side, int) and side > 0 for side in size):
        raise InputError(f"slide size {size}; expected two numbers of pixels", file=quality)
    return size
