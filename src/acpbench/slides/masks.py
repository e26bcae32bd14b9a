"""Tissue masks that the user brings: drawn by hand, exported from QuPath, or made by any model.

This is where a segmentation network plugs in: whatever writes one picture or one GeoJSON a slide can say
what is tissue, in any framework and any environment, and this package never runs it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import read_json
from acpbench.slides.annotations import mask_from_geojson
from acpbench.slides.tissue import TissueMask, count_objects

MAX_GEOJSON_BYTES = 256 * 1024 * 1024
MAX_PICTURE_PX = 400_000_000
ASPECT_TOLERANCE = 0.01
"""Relative difference of side ratios up to which a mask picture is taken to show the whole slide."""


def read_mask(
    path: str | os.PathLike[str],
    dimensions: tuple[int, int],
    size: tuple[int, int],
    classes: Iterable[str] | None = None,
) -> TissueMask:
    """Read a mask of a slide.

    Args:
        path: GeoJSON (``.geojson``, ``.json``, level-0 pixels) or a picture of the whole slide at any size
            with the slide's proportions, in one channel: zero is not tissue, anything else is (in a JPEG
            everything from 128 on, as it blurs edges).
        dimensions: slide ``(width, height)``, level-0 pixels.
        size: ``(width, height)`` of the mask wanted.
        classes: of a GeoJSON, the classifications taken beside unclassified polygons; ``None`` takes all.

    Raises:
        InputError: not such a file, or one that cannot belong to the slide.
    """
    path = Path(path)
    if path.suffix.lower() in (".geojson", ".json"):
        document = read_json(path, max_bytes=MAX_GEOJSON_BYTES)
        return mask_from_geojson(document, dimensions, size, classes, file=path)
    picture = _picture(path)
    height, width = picture.shape
    # One pixel of rounding on the short side is allowed whatever the size.
    slack = ASPECT_TOLERANCE + 1.0 / min(width, height)
    if abs((width / height) / (dimensions[0] / dimensions[1]) - 1) > slack:
        raise InputError(
            f"is {width} x {height} px, which are not the proportions of the slide "
            f"({dimensions[0]} x {dimensions[1]} px)",
            file=path,
        )
    from PIL import Image

    share = Image.fromarray(picture.astype(np.uint8) * 255).resize(size, Image.Resampling.BOX)
    mask = np.asarray(share) >= 128
    scale = (dimensions[0] / size[0], dimensions[1] / size[1])
    return TissueMask(mask, scale, float("nan"), False, count_objects(mask))


def _picture(path: Path) -> np.ndarray:
    """bool (H, W) of a picture."""
    from PIL import Image

    if not path.is_file():
        raise InputError("file does not exist", file=path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.width * image.height > MAX_PICTURE_PX:
                    raise InputError(f"has more than {MAX_PICTURE_PX} pixels; make it smaller", file=path)
                pixels = np.asarray(image)
                lossy = image.format == "JPEG"
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"is neither GeoJSON nor a readable picture ({error})", file=path) from None
    if pixels.ndim == 3:
        # A grey picture saved in colour is a mask all the same; an overlay or a photograph is not.
        if pixels.shape[2] >= 3 and (pixels[..., :1] != pixels[..., 1:3]).any():
            raise InputError("is a colour picture; a mask has one channel", file=path)
        pixels = pixels[..., 0]
    return pixels >= 128 if lossy else pixels != 0
