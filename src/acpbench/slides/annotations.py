"""Masks as annotations: polygons in level-0 pixels, in the GeoJSON layout that QuPath reads and writes.

QuPath's origin is the top left corner of the full-resolution image and its unit the pixel (QuPath
documentation, "Exporting annotations"); an object is a Feature with ``properties.objectType`` and a
``properties.classification`` of ``name`` and ``color`` (red, green, blue).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from acpbench.core.errors import InputError
from acpbench.slides.tissue import TissueMask, count_objects

TISSUE = "Tissue"
COLOURS = {
    TISSUE: (0, 160, 80),
    "Pen": (0, 90, 220),
    "Fold": (170, 60, 170),
    "Air bubble": (240, 150, 0),
}
"""Classes of ``tissue.geojson`` and the colours they are shown in."""


def mask_polygons(mask: np.ndarray, scale: tuple[float, float]) -> list[Any]:
    """Outlines of a bool (H, W) mask as shapely polygons in level-0 pixels.

    Holes are kept; pieces that touch at a corner only are apart. Ordered top to bottom, then left to right.

    Args:
        mask: the mask.
        scale: level-0 pixels per mask pixel along x and y.
    """
    from shapely.affinity import scale as scale_geometry
    from shapely.geometry import Polygon
    from skimage.measure import find_contours, label, regionprops

    polygons = []
    for region in regionprops(label(mask, connectivity=1)):
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
        outline = scale_geometry(outline, scale[0], scale[1], origin=(0, 0))
        polygons.extend(part for part in getattr(outline, "geoms", [outline]) if not part.is_empty)
    return sorted(polygons, key=lambda p: (p.bounds[1], p.bounds[0], p.bounds[3], p.bounds[2]))


def tissue_geojson(
    tissue: TissueMask | None, slide_id: str, artefacts: Mapping[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """QuPath GeoJSON: one annotation a piece of tissue, and one a piece of each artefact.

    Ids are derived from the slide id, class and index, so that the same slide gives the same bytes.

    Args:
        tissue: the tissue; ``None`` gives an empty collection.
        slide_id: the slide.
        artefacts: class of :data:`COLOURS` → mask of the tissue's shape.
    """
    if tissue is None:
        return {"type": "FeatureCollection", "features": []}
    features = []
    for name, mask in [(TISSUE, tissue.mask), *(artefacts or {}).items()]:
        for index, polygon in enumerate(mask_polygons(mask, tissue.scale)):
            features.append(_feature(polygon, name, index, slide_id))
    return {"type": "FeatureCollection", "features": features}


def _feature(polygon: Any, name: str, index: int, slide_id: str) -> dict[str, Any]:
    rings = [polygon.exterior, *polygon.interiors]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{slide_id}/{name.lower()}/{index}")),
        "geometry": {
            "type": "Polygon",
            "coordinates": [[[round(x, 2), round(y, 2)] for x, y in ring.coords] for ring in rings],
        },
        "properties": {
            "objectType": "annotation",
            "name": f"{name} {index + 1}",
            "classification": {"name": name, "color": list(COLOURS[name])},
            "isLocked": False,
        },
    }


def mask_from_geojson(
    document: Any,
    dimensions: tuple[int, int],
    size: tuple[int, int],
    classes: Iterable[str] | None = (TISSUE,),
    *,
    file: object = None,
) -> TissueMask:
    """Rasterise (possibly hand-drawn) polygons onto an overview of ``size`` (width, height).

    Args:
        document: a FeatureCollection, a list of Features or one Feature (QuPath exports all three), of
            Polygon or MultiPolygon geometries in level-0 pixels. Points and lines are no area and left out.
        dimensions: slide ``(width, height)``, level-0 pixels.
        size: mask ``(width, height)``.
        classes: names of the classifications taken; unclassified polygons always are. ``None`` takes all.
        file: named in errors.

    Raises:
        InputError: something else than such GeoJSON, or polygons of which none touches the slide.
    """
    wanted = None if classes is None else set(classes)
    scale = (dimensions[0] / size[0], dimensions[1] / size[1])
    total = np.zeros((size[1], size[0]), dtype=bool)
    polygons = [
        polygon for name, polygon in _polygons(document, file) if wanted is None or name in wanted | {None}
    ]
    for polygon in polygons:
        total |= _rasterise(
            [polygon.exterior.coords, *(hole.coords for hole in polygon.interiors)], scale, size
        )
    if polygons and not any(_touches(polygon, dimensions) for polygon in polygons):
        raise InputError(
            f"none of {len(polygons)} polygons touches the slide of {dimensions[0]} x {dimensions[1]} px; "
            "coordinates must be level-0 pixels",
            file=file,
        )
    return TissueMask(total, scale, float("nan"), False, count_objects(total))


def _touches(polygon: Any, dimensions: tuple[int, int]) -> bool:
    left, top, right, bottom = polygon.bounds
    return left < dimensions[0] and top < dimensions[1] and right > 0 and bottom > 0


def _polygons(document: Any, file: object) -> list[tuple[str | None, Any]]:
    """``(classification name or None, polygon)`` of every area in a document."""
    from shapely import get_coordinates
    from shapely.geometry import shape

    if isinstance(document, dict) and document.get("type") == "FeatureCollection":
        features = document.get("features")
    else:
        features = document if isinstance(document, list) else [document]
    if not isinstance(features, list):
        raise InputError("is not a GeoJSON FeatureCollection", file=file)
    found: list[tuple[str | None, Any]] = []
    for number, feature in enumerate(features, start=1):
        try:
            geometry = feature["geometry"]
            name = ((feature.get("properties") or {}).get("classification") or {}).get("name")
            with np.errstate(invalid="ignore"):
                outline = shape(geometry) if geometry else None
            if not isinstance(name, str | None):
                raise ValueError("its class has no name")
            if outline is not None and not np.isfinite(get_coordinates(outline)).all():
                raise ValueError("a coordinate is not finite")
        except Exception as error:  # foreign files: whatever fails is the file's fault
            raise InputError(f"feature {number} is not a GeoJSON Feature ({error})", file=file) from None
        found += [(name, polygon) for polygon in _areas(outline)]
    return found


def _areas(geometry: Any) -> Iterator[Any]:
    """The polygons of a geometry, of collections within collections too."""
    if geometry is None or geometry.is_empty:
        return
    if geometry.geom_type == "Polygon":
        yield geometry
    for part in getattr(geometry, "geoms", ()):
        yield from _areas(part)


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
