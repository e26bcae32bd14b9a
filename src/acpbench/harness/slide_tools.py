"""Slide tools: inspect, tile, embed. What the reference pipeline or an earlier run made is a hit."""

from __future__ import annotations

from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json, sha256_file, sha256_json, write_csv
from acpbench.features.registry import find_encoder, load_registry
from acpbench.features.store import is_complete, sidecar_path
from acpbench.harness.context import RunContext, TilerSettings
from acpbench.harness.registry import ToolOutcome
from acpbench.harness.tool_args import ExtractFeatures, InspectSlides, TileSlides

MANIFEST_COLUMNS = ["slide_id", "patient_id", "split", "status", "n_tiles", "reason"]
TILES_COLUMNS = ["slide_id", "status", "n_tiles", "reason", "path", "sha256"]
FEATURE_COLUMNS = ["slide_id", "encoder", "path", "sha256", "n_tiles"]


def inspect_slides(context: RunContext, args: InspectSlides) -> ToolOutcome:
    """Status of every slide of the cohort, with the reason of each that drops out."""
    rows: list[dict[str, Any]] = []
    classes: dict[str, list[float]] = {}
    for row in context.slide_rows():
        quality = read_json(context.slides_dir / row["slide_id"] / "quality.json")
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
    write_csv(context.path(output), MANIFEST_COLUMNS, rows)
    dropped = {row["slide_id"]: row["reason"] for row in rows if row["status"] != "ok"}
    means = {name: round(sum(values) / len(values), 4) for name, values in sorted(classes.items())}
    return ToolOutcome(
        [output],
        {
            "n_slides": len(rows),
            "n_ok": len(rows) - len(dropped),
            "dropped": dropped,
            "mean_fractions": means,
        },
        "hit",
    )


def _grid(args: TileSlides) -> TilerSettings:
    return TilerSettings(
        spacing_um=args.spacing_um, tile_size_px=args.tile_size_px, min_tissue=args.min_tissue
    )


def _grid_key(grid: TilerSettings) -> str:
    return sha256_json(grid.model_dump())[:16]


def _coords_path(context: RunContext, grid: TilerSettings, slide_id: str) -> tuple[Any, str, bool]:
    """Coordinates file of a slide for a grid, its key, and whether it had to be made."""
    if grid == context.tiler:
        return context.slides_dir / slide_id / "coords.h5", f"store:reference-tiles/{slide_id}", False
    relative = f"tiles/{_grid_key(grid)}/{slide_id}.h5"
    return (
        context.store_dir / relative,
        f"store:runs/{relative}",
        not (context.store_dir / relative).is_file(),
    )


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
        )
    return path, key, missing


def tile_slides(context: RunContext, args: TileSlides) -> ToolOutcome:
    """Tile every usable slide; a slide without tiles stays in the index with its reason."""
    from acpbench.slides.coords import read_coords

    grid = _grid(args)
    rows, made = [], 0
    for row in context.slide_rows():
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
    write_csv(context.path(output), TILES_COLUMNS, rows)
    counts = [row["n_tiles"] for row in rows if row["status"] == "ok"]
    if not counts:
        raise InputError("no slide has tiles with these settings; lower min_tissue or the tile size")
    result = {"n_slides": len(rows), "n_with_tiles": len(counts), "n_tiles": sum(counts)}
    return ToolOutcome([output], result, "miss" if made else "hit")


def extract_features(context: RunContext, args: ExtractFeatures) -> ToolOutcome:
    """Embed every usable slide. Features of the reference grid and encoder exist and are served."""
    from acpbench.features.encoders import load_encoder
    from acpbench.features.extract import extract_slide

    spec = find_encoder(load_registry(context.encoders_config), args.encoder)
    grid = _grid(args)
    rows, stored, made, encoder = [], [], 0, None
    for row in context.slide_rows():
        slide_id = row["slide_id"]
        if grid == context.tiler and is_complete(context.features_dir / args.encoder / f"{slide_id}.h5"):
            key = f"store:reference/{args.encoder}/{slide_id}.h5"
        else:
            key = f"store:runs/features/{args.encoder}/{_grid_key(grid)}/{slide_id}.h5"
        path = context.stored(key)
        if not is_complete(path):
            made += 1
            coords, _, _ = _make_coords(context, grid, row)
            encoder = encoder or load_encoder(spec, offline=context.offline)
            extract_slide(context.slides_base / row["path"], coords, encoder, path)
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
                }
            )
    output = f"{args.output_dir}/features_index.csv"
    write_csv(context.path(output), FEATURE_COLUMNS, rows)
    result = {"encoder": args.encoder, "dimension": spec.dim, "n_slides": len(rows),
              "n_tiles": sum(row["n_tiles"] for row in rows)}  # fmt: skip
    return ToolOutcome([output], result, "miss" if made else "hit", tuple(stored))
