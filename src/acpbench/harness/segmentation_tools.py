"""Segmentation tools: tissue of a slide, nuclei of a region or of sampled tiles."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from acpbench.core.errors import InputError
from acpbench.core.files import atomic_path, read_json, write_csv, write_json
from acpbench.core.progress import track
from acpbench.harness import nuclei
from acpbench.harness.context import RunContext
from acpbench.harness.slide_access import Region, open_cohort_slide, read_slide_region, slide_quality
from acpbench.harness.tool_args import SegmentNuclei, SegmentTissue
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import NucleusAreas, SegmentNucleiResult, SegmentTissueResult

MAX_GEOJSON_BYTES = 256 * 1024 * 1024
METHOD = "colour deconvolution, Otsu threshold over all regions, distance-transform watershed"
NUCLEUS_COLUMNS = [
    "region",
    "nucleus",
    "x_level0",
    "y_level0",
    "area_um2",
    "eccentricity",
    "haematoxylin",
    "counted",
    "whole",
]


def segment_tissue(context: RunContext, args: SegmentTissue) -> ToolOutcome:
    """Tissue of one slide as the study found it, without pieces below a size."""
    from shapely.geometry import shape

    slide_id = args.slide_id
    quality = slide_quality(context, slide_id)
    if quality["status"] != "ok" or not quality.get("mpp_x"):
        raise InputError(
            f"slide {slide_id!r} has no tissue to outline: {quality['status']} ({quality.get('reason')})",
            field="slide_id",
        )
    document = read_json(context.slides_dir / slide_id / "tissue.geojson", max_bytes=MAX_GEOJSON_BYTES)
    pixel_mm2 = quality["mpp_x"] * quality["mpp_y"] / 1e6
    areas, kept = [], []
    for feature in document["features"]:
        area_mm2 = shape(feature["geometry"]).area * pixel_mm2
        if area_mm2 >= args.min_piece_mm2:
            areas.append(area_mm2)
            kept.append(feature)
    output = f"{args.output_dir}/tissue/{slide_id}.geojson"
    write_json(context.write_path(output), document | {"features": kept})
    slide_mm2 = quality["width_px"] * quality["height_px"] * pixel_mm2
    result = SegmentTissueResult(
        slide_id=slide_id,
        tissue_fraction=sum(areas) / slide_mm2,
        tissue_area_mm2=sum(areas),
        n_pieces=len(areas),
        largest_piece_mm2=max(areas, default=0.0),
        mask_spacing_um=quality["mask_spacing_um"],
        glass_found=bool(quality["glass_found"]),
    )
    return ToolOutcome([output], result, "hit")


class _Place(NamedTuple):
    """Where a region lies: corner in level-0 pixels, size in pixels of the working spacing."""

    x_level0: int
    y_level0: int
    width_px: int
    height_px: int


def _places(context: RunContext, args: SegmentNuclei) -> list[_Place]:
    """The one region asked for, or tiles spread evenly over the study's tile list."""
    if args.x_level0 is not None and args.y_level0 is not None:
        return [_Place(args.x_level0, args.y_level0, args.width_px, args.height_px)]
    from acpbench.slides.coords import read_coords

    tiles = read_coords(context.slides_dir / args.slide_id / "coords.h5")
    if not len(tiles.coords):
        raise InputError(f"slide {args.slide_id!r} has no tiles ({tiles.status})", field="slide_id")
    side = round(tiles.tile_size_px * tiles.requested_spacing_um / args.spacing_um)
    pick = np.linspace(0, len(tiles.coords) - 1, min(args.n_tiles, len(tiles.coords))).round().astype(int)
    return [_Place(int(x), int(y), side, side) for x, y in tiles.coords[np.unique(pick)]]


def segment_nuclei(context: RunContext, args: SegmentNuclei) -> ToolOutcome:
    """Nuclei of a slide: a table of them, an overlay of the first region, counts and areas.

    Raises:
        InputError: no region could be read, or the slide is coarser than the working spacing.
    """
    from PIL import Image

    places = _places(context, args)
    regions: list[tuple[_Place, Region]] = []
    failed: list[InputError] = []
    with open_cohort_slide(context, args.slide_id) as reader:
        for place in track(places, label="reading regions"):
            try:
                region = read_slide_region(
                    reader, place.x_level0, place.y_level0, args.spacing_um, place.width_px, place.height_px
                )
            except InputError as error:
                failed.append(error)
                continue
            regions.append((place, region))
    if not regions:
        raise failed[0]
    spacing_um = (regions[0][1].spacing_x_um * regions[0][1].spacing_y_um) ** 0.5
    tissues = [nuclei.tissue_pixels(region.rgb) for _, region in regions]
    stains = [
        nuclei.haematoxylin(region.rgb, spacing_um)
        for _, region in track(regions, label="unmixing stains", total=len(regions))
    ]
    threshold = nuclei.stain_threshold(stains, tissues)
    found = [
        nuclei.segment(
            stain,
            tissue,
            threshold,
            spacing_um,
            min_area_um2=args.min_area_um2,
            max_area_um2=args.max_area_um2,
        )
        for stain, tissue in track(
            list(zip(stains, tissues, strict=True)), label="segmenting nuclei", total=len(stains)
        )
    ]
    where = "tiles" if args.x_level0 is None else f"x{args.x_level0}_y{args.y_level0}"
    stem = f"{args.output_dir}/nuclei/{args.slide_id}_{where}"
    table, overlay = f"{stem}.csv", f"{stem}.png"
    rows: list[dict[str, Any]] = []
    for index, ((place, region), one) in enumerate(zip(regions, found, strict=True)):
        rows += _rows(index, place, region, one)
    write_csv(context.write_path(table), NUCLEUS_COLUMNS, rows)
    with atomic_path(context.write_path(overlay)) as temporary:
        picture = nuclei.outlined(regions[0][1].rgb, found[0].labels)
        Image.fromarray(picture).save(temporary, format="PNG")
    pixel_mm2 = spacing_um**2 / 1e6
    tissue_mm2 = sum(int(tissue.sum()) for tissue in tissues) * pixel_mm2
    n_nuclei = sum(int(one.counted.sum()) for one in found)
    result = SegmentNucleiResult(
        slide_id=args.slide_id,
        n_regions=len(regions),
        n_regions_failed=len(failed),
        n_nuclei=n_nuclei,
        region_area_mm2=sum(tissue.size for tissue in tissues) * pixel_mm2,
        tissue_area_mm2=tissue_mm2,
        density_per_mm2=n_nuclei / tissue_mm2 if tissue_mm2 > 0 else None,
        area=_areas(np.concatenate([one.area_um2[one.whole] for one in found])),
        spacing_um=spacing_um,
        method=METHOD,
    )
    return ToolOutcome([table, overlay], result)


def _rows(index: int, place: _Place, region: Region, one: nuclei.Nuclei) -> list[dict[str, Any]]:
    scale_x = region.width_level0 / place.width_px
    scale_y = region.height_level0 / place.height_px
    return [
        {
            "region": index,
            "nucleus": number + 1,
            "x_level0": round(place.x_level0 + (x + 0.5) * scale_x, 1),
            "y_level0": round(place.y_level0 + (y + 0.5) * scale_y, 1),
            "area_um2": round(float(one.area_um2[number]), 2),
            "eccentricity": round(float(one.eccentricity[number]), 4),
            "haematoxylin": round(float(one.haematoxylin[number]), 5),
            "counted": int(one.counted[number]),
            "whole": int(one.whole[number]),
        }
        for number, (x, y) in enumerate(one.centroid_px)
    ]


def _areas(area_um2: np.ndarray) -> NucleusAreas:
    if not len(area_um2):
        return NucleusAreas(n=0, mean_um2=None, sd_um2=None, p5_um2=None, median_um2=None, p95_um2=None)
    p5, middle, p95 = (float(value) for value in np.percentile(area_um2, [5, 50, 95]))
    return NucleusAreas(
        n=len(area_um2),
        mean_um2=float(area_um2.mean()),
        sd_um2=float(area_um2.std(ddof=1)) if len(area_um2) > 1 else None,
        p5_um2=p5,
        median_um2=middle,
        p95_um2=p95,
    )
