"""Where the tissue is: saturation threshold on an overview, cleaned up, and written as polygons.

The threshold is Otsu's (IEEE Trans. Syst. Man Cybern. 1979) on HSV saturation, trusted only when the paler
class looks like empty glass: on a slide that is all tissue, Otsu would otherwise part dark from pale tissue.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

MIN_SATURATION = 0.05
MAX_SATURATION = 0.12
"""Bounds of the threshold. Glass has a saturation near 0.02, pale stroma and fat about 0.08 to 0.2."""

GLASS_MAX_SATURATION = 0.07
GLASS_MIN_VALUE = 0.75
GLASS_MIN_GAP = 0.06
"""The paler class is glass when its mean is this unsaturated and bright, and this far from the other's."""

SMOOTHING_UM = 4.0
CLOSE_RADIUS_UM = 16.0
OPEN_RADIUS_UM = 8.0
MIN_OBJECT_MM2 = 0.01
MAX_FILLED_HOLE_MM2 = 0.02


@dataclass(frozen=True)
class TissueMask:
    """Tissue on an overview.

    Attributes:
        mask: bool (H, W).
        scale: level-0 pixels per mask pixel along x and y.
        threshold: saturation in force. glass_found: whether a class of empty glass was told apart.
        n_objects: connected pieces.
    """

    mask: np.ndarray
    scale: tuple[float, float]
    threshold: float
    glass_found: bool
    n_objects: int

    @property
    def fraction(self) -> float:
        """Share of the slide that is tissue."""
        return float(self.mask.mean()) if self.mask.size else 0.0


def hsv(rgb: np.ndarray) -> np.ndarray:
    """uint8 RGB → float HSV in 0..1, shape (H, W, 3)."""
    from skimage.color import rgb2hsv

    return rgb2hsv(rgb)


def saturation_threshold(saturation: np.ndarray, value: np.ndarray) -> tuple[float, bool]:
    """``(threshold, glass_found)`` for 1-d samples of saturation and value, both in 0..1."""
    from skimage.filters import threshold_otsu

    if saturation.size == 0 or float(np.ptp(saturation)) < 1e-6:
        return MIN_SATURATION, False
    otsu = float(threshold_otsu(saturation))
    pale = saturation <= otsu
    if not pale.any() or pale.all():
        return MIN_SATURATION, False
    mean_pale, mean_rest = float(saturation[pale].mean()), float(saturation[~pale].mean())
    glass = (
        mean_pale <= GLASS_MAX_SATURATION
        and float(value[pale].mean()) >= GLASS_MIN_VALUE
        and mean_rest - mean_pale >= GLASS_MIN_GAP
    )
    return (float(np.clip(otsu, MIN_SATURATION, MAX_SATURATION)), True) if glass else (MIN_SATURATION, False)


def find_tissue(
    rgb: np.ndarray,
    scale: tuple[float, float],
    spacing_um: float,
    *,
    ignore: np.ndarray | None = None,
    min_object_mm2: float = MIN_OBJECT_MM2,
) -> TissueMask:
    """Find tissue on an overview.

    Args:
        rgb: uint8 (H, W, 3).
        scale: level-0 pixels per overview pixel.
        spacing_um: um per overview pixel.
        ignore: bool (H, W), pixels that are not tissue whatever their colour (pen, unreadable).
        min_object_mm2: smaller pieces are dropped.

    Returns:
        A mask that may be empty.
    """
    from scipy import ndimage
    from skimage.measure import label
    from skimage.morphology import isotropic_closing, isotropic_opening

    smooth = ndimage.gaussian_filter(rgb.astype(np.float32), (SMOOTHING_UM / spacing_um,) * 2 + (0,))
    colour = hsv(np.clip(smooth, 0, 255) / 255.0)
    # Saturation is noise where there is hardly any light (black padding of some scanners).
    usable = colour[..., 2] > 0.1
    if ignore is not None:
        usable &= ~ignore
    threshold, glass = saturation_threshold(colour[..., 1][usable], colour[..., 2][usable])
    mask = usable & (colour[..., 1] > threshold)
    if mask.any():
        mask = isotropic_closing(mask, CLOSE_RADIUS_UM / spacing_um)
        mask = isotropic_opening(mask, OPEN_RADIUS_UM / spacing_um)
        pixel_mm2 = (spacing_um / 1000.0) ** 2
        mask = drop_small(mask, min_object_mm2 / pixel_mm2)
        mask = ~drop_small(~mask, MAX_FILLED_HOLE_MM2 / pixel_mm2, keep_border=True)
        if ignore is not None:
            mask = drop_small(mask & ~ignore, min_object_mm2 / pixel_mm2)
    return TissueMask(mask, scale, threshold, glass, int(label(mask, connectivity=1).max(initial=0)))


def drop_small(mask: np.ndarray, min_px: float, *, keep_border: bool = False) -> np.ndarray:
    """Remove 4-connected pieces below ``min_px``; with ``keep_border`` those touching the edge stay."""
    from skimage.measure import label

    labels = label(mask, connectivity=1)
    keep = np.bincount(labels.ravel()) >= min_px
    if keep_border:
        edge = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
        keep[np.unique(edge)] = True
    keep[0] = False
    return keep[labels]


def mask_polygons(tissue: TissueMask) -> list[Any]:
    """Shapely polygons in level-0 pixels, holes included, ordered top to bottom then left to right."""
    from shapely.affinity import scale as scale_geometry
    from shapely.geometry import Polygon
    from skimage.measure import find_contours, label, regionprops

    polygons = []
    for region in regionprops(label(tissue.mask, connectivity=1)):
        top, left = region.bbox[:2]
        rings = [
            # A padded pixel's centre is half a pixel inside it; contours are (row, column).
            [(column - 0.5 + left, row - 0.5 + top) for row, column in ring]
            for ring in find_contours(np.pad(region.image, 1).astype(np.float32), 0.5)
        ]
        shapes = sorted((Polygon(ring) for ring in rings if len(ring) >= 4), key=lambda p: -p.area)
        outline = Polygon(shapes[0].exterior, [hole.exterior for hole in shapes[1:]]).simplify(0.25)
        if not outline.is_valid:
            outline = outline.buffer(0)
        outline = scale_geometry(outline, tissue.scale[0], tissue.scale[1], origin=(0, 0))
        polygons.extend(part for part in getattr(outline, "geoms", [outline]) if not part.is_empty)
    return sorted(polygons, key=lambda p: (p.bounds[1], p.bounds[0], p.bounds[3], p.bounds[2]))


def tissue_geojson(tissue: TissueMask | None, slide_id: str) -> dict[str, Any]:
    """QuPath GeoJSON: one ``Tissue`` annotation a piece, coordinates in level-0 pixels.

    Ids are derived from the slide id and the index, so that the same slide gives the same bytes.
    """
    features = []
    for index, polygon in enumerate(mask_polygons(tissue) if tissue is not None else []):
        rings = [polygon.exterior, *polygon.interiors]
        features.append(
            {
                "type": "Feature",
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{slide_id}/tissue/{index}")),
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [[[round(x, 2), round(y, 2)] for x, y in ring.coords] for ring in rings],
                },
                "properties": {
                    "objectType": "annotation",
                    "name": f"Tissue {index + 1}",
                    "classification": {"name": "Tissue", "color": [0, 160, 80]},
                    "isLocked": False,
                },
            }
        )
    return {"type": "FeatureCollection", "features": features}


def _rasterise(rings: list[Any], scale: tuple[float, float], size: tuple[int, int]) -> np.ndarray:
    """Even-odd fill of rings in level-0 pixels: bool (H, W), True where a pixel's centre lies inside."""
    toggles = np.zeros((size[1], size[0] + 1), dtype=np.int32)
    for ring in rings:
        points = np.asarray(ring, dtype=np.float64)[:, :2] / scale
        for (xa, ya), (xb, yb) in pairwise(points):
            # Rows whose centre y + 0.5 lies in [low, high): half-open, so a shared vertex counts once.
            low, high = min(ya, yb), max(ya, yb)
            rows = np.arange(max(math.ceil(low - 0.5), 0), min(math.ceil(high - 0.5), size[1]))
            if len(rows):
                crossing = xa + (rows + 0.5 - ya) * (xb - xa) / (yb - ya)
                columns = np.clip(np.ceil(crossing - 0.5), 0, size[0]).astype(np.int64)
                np.add.at(toggles, (rows, columns), 1)
    return (np.cumsum(toggles, axis=1)[:, :-1] & 1).astype(bool)


def mask_from_geojson(
    geojson: dict[str, Any], dimensions: tuple[int, int], size: tuple[int, int]
) -> TissueMask:
    """Rasterise (possibly hand-edited) tissue polygons onto an overview of ``size`` (width, height).

    Args:
        geojson: FeatureCollection of Polygon or MultiPolygon features in level-0 pixels. Features whose
            QuPath classification is something other than ``Tissue`` are left out.
        dimensions: slide ``(width, height)``, level-0 pixels.
        size: mask ``(width, height)``.
    """
    from shapely.geometry import shape
    from skimage.measure import label

    scale = (dimensions[0] / size[0], dimensions[1] / size[1])
    polygons = []
    for feature in geojson.get("features", []):
        name = ((feature.get("properties") or {}).get("classification") or {}).get("name", "Tissue")
        if name == "Tissue" and feature.get("geometry"):
            geometry = shape(feature["geometry"])
            polygons.extend(
                p
                for p in getattr(geometry, "geoms", [geometry])
                if p.geom_type == "Polygon" and not p.is_empty
            )
    total = np.zeros((size[1], size[0]), dtype=bool)
    for polygon in polygons:
        total |= _rasterise(
            [polygon.exterior.coords, *(hole.coords for hole in polygon.interiors)], scale, size
        )
    return TissueMask(total, scale, float("nan"), False, int(label(total, connectivity=1).max(initial=0)))
