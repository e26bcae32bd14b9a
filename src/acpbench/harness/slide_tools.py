"""Slide tools: inspect, tile, embed. What the reference pipeline or an earlier run made is a hit."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from statistics import fmean, median
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json, sha256_file, sha256_json, write_csv
from acpbench.core.progress import track
from acpbench.features.registry import find_encoder, load_registry
from acpbench.features.store import is_complete, sidecar_path
from acpbench.harness.context import RunContext, TilerSettings
from acpbench.harness.slide_access import slide_quality
from acpbench.harness.tool_args import ExtractFeatures, InspectSlides, ReportQuality, TileSlides
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import (
    ExtractFeaturesResult,
    FractionSummary,
    InspectSlidesResult,
    ReportQualityResult,
    TileSlidesResult,
)

MANIFEST_COLUMNS = ["slide_id", "patient_id", "split", "status", "n_tiles", "reason"]
TILES_COLUMNS = ["slide_id", "status", "n_tiles", "reason", "path", "sha256"]
FEATURE_COLUMNS = ["slide_id", "encoder", "path", "sha256", "n_tiles", "spacing_um", "tile_size_px"]
QUALITY_COLUMNS = ["slide_id", "patient_id", "split", "status", "tissue_area_mm2", "n_tissue_objects"]
LIMITED = ("pen", "blur", "fold", "unreadable")
MAX_NAMED = 50
"""Slides that an answer names; all of them are in the table it points to."""


def inspect_slides(context: RunContext, args: InspectSlides) -> ToolOutcome:
    """Status of every slide of the cohort, with the reason of each that drops out."""
    rows: list[dict[str, Any]] = []
    classes: dict[str, list[float]] = {}
    for row in track(context.slide_rows(), label="inspecting slides"):
        quality = slide_quality(context, row["slide_id"])
        for name, value in (quality.get("classes") or {}).items():
            if value.get("fraction") is not None:
                classes.setdefault(name, []).append(value["fraction"])
        rows.append(
            {
                "slide_id": row["slide_id"],
                "patient_id": row["patient_id"],
                "split": row["split"],
                "status": quality["status"],
                "n_tiles": row["n_tiles"],
                "reason": quality.get("reason") or "",
            }
        )
    usable = {row["slide_id"] for row in rows}
    for row in read_csv(context.exclusions_csv):
        if row["slide_id"] not in usable:
            rows.append(
                {
                    "slide_id": row["slide_id"],
                    "patient_id": row["patient_id"],
                    "split": "",
                    "status": "excluded",
                    "n_tiles": 0,
                    "reason": f"{row['stage']}: {row['reason']}",
                }
            )
    output = f"{args.output_dir}/slide_manifest.csv"
    write_csv(context.write_path(output), MANIFEST_COLUMNS, rows)
    dropped = {row["slide_id"]: row["reason"] for row in rows if row["status"] != "ok"}
    means = {name: round(sum(values) / len(values), 4) for name, values in sorted(classes.items())}
    result = InspectSlidesResult(
        n_slides=len(rows),
        n_ok=len(rows) - len(dropped),
        n_dropped=len(dropped),
        dropped=dict(islice(dropped.items(), MAX_NAMED)),
        mean_fractions=means,
    )
    return ToolOutcome([output], result, "hit")


def report_quality(context: RunContext, args: ReportQuality) -> ToolOutcome:
    """Tissue area and artefact fractions of every slide, from the study's inspection of it."""
    rows: list[dict[str, Any]] = []
    found: dict[str, dict[str, float]] = {}
    shares: dict[str, str] = {}
    above: dict[str, list[str]] = {}
    for row in track(context.slide_rows(), label="reading quality records"):
        slide_id = row["slide_id"]
        quality = slide_quality(context, slide_id)
        line: dict[str, Any] = {**row, **{name: quality.get(name) for name in QUALITY_COLUMNS[3:]}}
        for name, value in (quality.get("classes") or {}).items():
            fraction = value.get("fraction")
            if fraction is None:
                continue
            line[f"{name}_fraction"] = round(fraction, 6)
            found.setdefault(name, {})[slide_id] = fraction
            shares[name] = str(value.get("of", ""))
            if name in LIMITED and fraction > getattr(args, f"max_{name}_fraction"):
                above.setdefault(slide_id, []).append(f"{name} {fraction:.3f}")
        rows.append(line)
    output = f"{args.output_dir}/quality_report.csv"
    write_csv(
        context.write_path(output), [*QUALITY_COLUMNS, *(f"{name}_fraction" for name in sorted(found))], rows
    )
    areas = [row["tissue_area_mm2"] for row in rows if row["tissue_area_mm2"] is not None]
    result = ReportQualityResult(
        n_slides=len(rows),
        tissue_area_mm2_median=median(areas) if areas else None,
        fractions={name: _summary(shares[name], values) for name, values in sorted(found.items())},
        n_above_limits=len(above),
        above_limits=dict(islice(above.items(), MAX_NAMED)),
    )
    return ToolOutcome([output], result, "hit")


def _summary(of: str, values: dict[str, float]) -> FractionSummary:
    highest = max(values, key=lambda slide_id: values[slide_id])
    return FractionSummary(
        of=of,
        n_slides=len(values),
        mean=fmean(values.values()),
        median=median(values.values()),
        maximum=values[highest],
        maximum_slide_id=highest,
    )


def _grid(args: TileSlides) -> TilerSettings:
    return TilerSettings(
        spacing_um=args.spacing_um, tile_size_px=args.tile_size_px, min_tissue=args.min_tissue
    )


def _grid_key(grid: TilerSettings) -> str:
    return sha256_json(grid.model_dump())[:16]


def _coords_path(context: RunContext, grid: TilerSettings, slide_id: str) -> tuple[Any, str, bool]:
    """Coordinates file of a slide for a grid, its key, and whether it has to be made.

    A slide that an earlier run could not read is tried again: a disk recovers.
    """
    from acpbench.slides.coords import read_coords

    if grid == context.tiler:
        return context.slides_dir / slide_id / "coords.h5", f"store:reference-tiles/{slide_id}", False
    relative = f"tiles/{_grid_key(grid)}/{slide_id}.h5"
    path = context.store_dir / relative
    missing = not path.is_file() or read_coords(path).status == "unreadable"
    return path, f"store:runs/{relative}", missing


def _make_coords(context: RunContext, grid: TilerSettings, row: dict[str, str]) -> tuple[Any, str, bool]:
    from acpbench.slides.tiling import TilingSettings, tile_slide_to_files

    path, key, missing = _coords_path(context, grid, row["slide_id"])
    if missing:
        tile_slide_to_files(
            context.slides_base / row["path"],
            path,
            TilingSettings(**grid.model_dump()),
            slide_id=row["slide_id"],
            declared_mpp=float(row["mpp"]) if row.get("mpp") else None,
            tissue_geojson=context.slides_dir / row["slide_id"] / "tissue.geojson",
        )
    return path, key, missing


def tile_slides(context: RunContext, args: TileSlides) -> ToolOutcome:
    """Tile every usable slide; a slide without tiles stays in the index with its reason."""
    from acpbench.slides.coords import read_coords

    grid = _grid(args)
    rows, made = [], 0
    for row in track(context.slide_rows(), label="tiling slides"):
        path, key, missing = _make_coords(context, grid, row)
        made += missing
        tiles = read_coords(path)
        rows.append(
            {
                "slide_id": row["slide_id"],
                "status": tiles.status,
                "n_tiles": len(tiles.coords),
                "reason": tiles.reason,
                "path": key,
                "sha256": sha256_file(path),
            }
        )
    output = f"{args.output_dir}/tiles_index.csv"
    write_csv(context.write_path(output), TILES_COLUMNS, rows)
    counts = [row["n_tiles"] for row in rows if row["status"] == "ok"]
    if not counts:
        reasons = Counter(f"{row['status']} ({row['reason']})" for row in rows)
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        raise InputError(
            f"no slide has tiles with these settings: {told}; a spacing finer than a slide's own is refused, "
            "else lower min_tissue or the tile size"
        )
    result = TileSlidesResult(n_slides=len(rows), n_with_tiles=len(counts), n_tiles=sum(counts))
    return ToolOutcome([output], result, "miss" if made else "hit")


def extract_features(context: RunContext, args: ExtractFeatures) -> ToolOutcome:
    """Embed every usable slide. Features of the reference grid and encoder exist and are served."""
    from acpbench.features.encoders import DeferredEncoder
    from acpbench.features.extract import extract_slide

    spec = find_encoder(load_registry(context.encoders_config), args.encoder)
    grid = _grid(args)
    encoder = DeferredEncoder(spec, offline=context.offline)
    rows, stored, made = [], [], 0
    for row in track(context.slide_rows(), label="extracting features"):
        slide_id = row["slide_id"]
        if grid == context.tiler and is_complete(context.features_dir / args.encoder / f"{slide_id}.h5"):
            key = f"store:reference/{args.encoder}/{slide_id}.h5"
        else:
            key = f"store:runs/features/{args.encoder}/{_grid_key(grid)}/{slide_id}.h5"
            coords, _, _ = _make_coords(context, grid, row)
            # Kept features serve only where slide, tiles and weights are still the same.
            done = extract_slide(context.slides_base / row["path"], coords, encoder, context.stored(key))
            made += done["cache"] == "miss"
        path = context.stored(key)
        sidecar = read_json(sidecar_path(path))
        stored.append({"path": key, "sha256": sidecar["sha256"], "size": path.stat().st_size})
        if sidecar["n_tiles"]:
            rows.append(
                {
                    "slide_id": slide_id,
                    "encoder": args.encoder,
                    "path": key,
                    "sha256": sidecar["sha256"],
                    "n_tiles": sidecar["n_tiles"],
                    "spacing_um": grid.spacing_um,
                    "tile_size_px": grid.tile_size_px,
                }
            )
    output = f"{args.output_dir}/features_index.csv"
    write_csv(context.write_path(output), FEATURE_COLUMNS, rows)
    result = ExtractFeaturesResult(
        encoder=args.encoder,
        dimension=spec.dim,
        n_slides=len(rows),
        n_tiles=sum(row["n_tiles"] for row in rows),
    )
    return ToolOutcome([output], result, "miss" if made else "hit", tuple(stored))
