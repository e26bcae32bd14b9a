"""``acp-bench slides``: inspect and tile one slide, check the manifest of a cohort."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from acpbench.core.errors import InputError

_FILE = click.Path(path_type=Path)
MAX_SPACING_UM = 1000.0


@click.group()
def slides() -> None:
    """Inspect and tile whole-slide images."""


def _slide_id(path: Path) -> str:
    """An identifier from a file name; only the last suffix is cut off, so ``A.B.svs`` gives ``A.B``."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.stem).lstrip(".")[:128] or "slide"


def _positive(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value <= MAX_SPACING_UM:
        raise click.BadParameter(f"must be above 0 and at most {MAX_SPACING_UM:g}")
    return value


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise InputError("is not a regular file" if path.exists() else "file does not exist", file=path)


@slides.command("inspect")
@click.argument("file", type=_FILE)
@click.option("--output-dir", type=_FILE, help="Write quality.json, tissue.geojson and thumbnail.jpg here.")
@click.option(
    "--mpp", type=float, callback=_positive, help="Spacing of level 0 in um/px; overrides the file's."
)
@click.option("--mask", type=_FILE, help="Tissue mask of your own (GeoJSON or picture), taken as it is.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def inspect_command(
    file: Path, output_dir: Path | None, mpp: float | None, mask: Path | None, form: str
) -> None:
    """Say what FILE is, where its tissue is and what is wrong with it.

    A slide that cannot be used is reported with its status; the exit code stays 0.
    """
    from acpbench.slides.inspect import inspect_slide, inspect_slide_to_files

    _require_file(file)
    options: dict[str, Any] = {"slide_id": _slide_id(file), "declared_mpp": mpp, "mask": mask}
    if mask is not None:
        _require_file(mask)
    if output_dir is not None:
        quality = inspect_slide_to_files(file, output_dir, **options)
    else:
        quality = inspect_slide(file, **options).quality
    if form == "json":
        import json

        click.echo(json.dumps(quality, indent=2, ensure_ascii=False))
    else:
        for name, value in _summary(quality):
            click.echo(f"{name:<16} {value}")


def _summary(quality: dict[str, Any]) -> list[tuple[str, str]]:
    def show(value: Any, unit: str = "", scale: float = 1.0) -> str:
        return "-" if value is None else f"{value * scale:.4g}{unit}"

    reason = f" ({quality['reason']}: {quality['detail']})" if quality["detail"] else ""
    rows = [("slide", quality["slide_id"]), ("status", f"{quality['status']}{reason}")]
    if quality["width_px"] is not None:
        spacing = "-"
        if quality["mpp_x"] is not None:
            spacing = f"{quality['mpp_x']:g} x {quality['mpp_y']:g} um/px ({quality['mpp_source']})"
        sizes = ", ".join(f"{level['width_px']}x{level['height_px']}" for level in quality["levels"])
        rows += [
            ("reader", f"{quality['backend']} ({quality['vendor']})"),
            ("levels", sizes),
            ("spacing", spacing),
            ("objective", show(quality["objective_power"], "x")),
        ]
    if quality["classes"] is not None:
        area = show(quality["tissue_area_mm2"], " mm2")
        rows.append(("tissue", f"{show(quality['tissue_fraction'], '%', 100)} of the slide, {area}"))
        for name in ("pen", "fold", "bubble", "blur"):
            entry = quality["classes"][name]
            rows.append((name, f"{show(entry['fraction'], '%', 100)} of {entry['of']}"))
    return rows + [("warning", text) for text in quality["warnings"]]


@slides.command("tile")
@click.argument("file", type=_FILE)
@click.option(
    "--spacing-um", type=float, required=True, callback=_positive, help="Spacing of the tiles, um/px."
)
@click.option("--tile-size-px", type=click.IntRange(min=1), required=True, help="Side of a tile in pixels.")
@click.option("--output", type=_FILE, required=True, help="coords.h5 to write.")
@click.option(
    "--mpp", type=float, callback=_positive, help="Spacing of level 0 in um/px; overrides the file's."
)
@click.option("--min-tissue", type=click.FloatRange(0, 1), default=0.5, show_default=True)
@click.option("--min-tiles", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--tissue", type=_FILE, help="Tissue to use instead of finding it: GeoJSON or picture.")
def tile_command(
    file: Path,
    spacing_um: float,
    tile_size_px: int,
    output: Path,
    mpp: float | None,
    min_tissue: float,
    min_tiles: int,
    tissue: Path | None,
) -> None:
    """Write the level-0 coordinates of FILE's tissue tiles.

    Exits with 2 and the reason when the slide cannot be tiled; nothing is written then.
    """
    from acpbench.slides.coords import write_coords
    from acpbench.slides.tiling import TilingSettings, tile_file

    _require_file(file)
    settings = TilingSettings(spacing_um, tile_size_px, min_tissue, min_tiles)
    tiles = tile_file(file, settings, slide_id=_slide_id(file), declared_mpp=mpp, tissue_geojson=tissue)
    if tiles.status != "ok" or tiles.plan is None:
        raise InputError(f"{tiles.status}: {tiles.detail}", file=file)
    write_coords(output, tiles)
    plan, counts = tiles.plan, tiles.counts
    click.echo(f"requested spacing  {plan.requested_spacing_um:g} um/px")
    read = f"{plan.read_spacing_x_um:g} x {plan.read_spacing_y_um:g} um/px"
    click.echo(f"read spacing       {read} (level {plan.level})")
    click.echo(f"effective spacing  {plan.effective_spacing_x_um:g} x {plan.effective_spacing_y_um:g} um/px")
    click.echo(
        f"tile               {plan.tile_size_px} px, "
        f"{plan.tile_width_level0:g} x {plan.tile_height_level0:g} px at level 0"
    )
    click.echo(
        f"tiles              {counts['n_tiles']} kept of {counts['n_grid']} in the grid, "
        f"{counts['n_any_tissue']} with any tissue"
    )


@slides.command("manifest")
@click.argument("file", type=_FILE)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="FIELD=COLUMN",
    help="slide_id, patient_id, path, mpp or mask.",
)
@click.option("--slide-dir", type=_FILE, help="Folder of the slides, where it is not the manifest's.")
@click.option("--suffix", default="", help="Added to every slide path (.svs).")
@click.option("--clinical", type=_FILE, help="Table with a row a patient.")
@click.option("--clinical-id", help="Its patient column, where it is not named as in the manifest.")
def manifest_command(
    file: Path,
    columns: tuple[str, ...],
    slide_dir: Path | None,
    suffix: str,
    clinical: Path | None,
    clinical_id: str | None,
) -> None:
    """Say which rows of manifest FILE are usable, before any work is done.

    No slide is opened. Exits with 2 when no row is left.
    """
    from collections import Counter

    from acpbench.slides.manifest import read_clinical, read_manifest

    if bad := [text for text in columns if not all(text.partition("=")[::2])]:
        raise InputError(f"{bad[0]!r} is not FIELD=COLUMN", field="--column")
    mapped = dict(text.split("=", 1) for text in columns)
    manifest = read_manifest(file, mapped, slide_dir=slide_dir, suffix=suffix)
    rows, reasons = manifest.rows, Counter(row["reason"] for row in manifest.exclusions)
    table = [("rows", f"{manifest.n_rows} of {len(manifest.patients)} patients")]
    examples = {row["reason"]: row["detail"] for row in reversed(manifest.exclusions)}
    table += [(reason, f"{count} ({examples[reason]})") for reason, count in reasons.most_common()]
    if clinical is not None:
        found = read_clinical(clinical, clinical_id or mapped.get("patient_id", "patient_id"))
        without = manifest.patients - set(found.cells)
        rows = [row for row in rows if row.patient_id in found.cells]
        both = len(manifest.patients) - len(without)
        table.append(
            (
                "clinical table",
                f"{found.n_rows} rows of {len(found.cells)} patients, {both} of them in the manifest",
            )
        )
        if without:
            table.append(("no clinical row", f"{len(without)} patients (the first: {min(without)})"))
    table.append(("usable", f"{len(rows)} slides of {len({row.patient_id for row in rows})} patients"))
    for name, text in table:
        click.echo(f"{name:<20} {text}")
    if not rows:
        raise InputError(f"none of {manifest.n_rows} rows is usable", file=file)
