"""``acp-bench features``: look into feature files, take other tools' over, give ours to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from acpbench.core.errors import InputError

_FILE = click.Path(path_type=Path)


def _reading(function: Any) -> Any:
    """Options that say what a foreign file does not."""
    options = [
        click.option("--coords", "coords_path", type=_FILE, help="File with the coordinates, if apart."),
        click.option("--feature", help="Features to take where a file holds several (AtlasPatch)."),
        click.option("--mpp", type=float, help="Spacing of level 0, um/px (needed for STAMP)."),
        click.option("--tile-size-level0", type=float, help="Side of a tile in level-0 px, if not stated."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def features() -> None:
    """Look into, import and export tile feature files."""


@features.command("info")
@click.argument("file", type=_FILE)
@_reading
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def info_command(file: Path, form: str, **options: Any) -> None:
    """Say what the feature file FILE is: made by what, how many tiles, how large they are.

    Reads this project's files and those of TRIDENT, CLAM, STAMP, AtlasPatch and slide2vec.
    """
    from acpbench.features.foreign import read_any_features

    bag = read_any_features(file, **options)
    facts = {
        "format": bag.attrs.get("source_format", "acpbench"),
        "slide_id": bag.slide_id,
        "status": bag.status,
        "encoder": bag.attrs["encoder"],
        "variant": bag.attrs.get("variant"),
        "n_tiles": len(bag.features),
        "dim": int(bag.features.shape[1]),
        "dtype": str(bag.features.dtype),
    }
    for name in ("tile_size_px", "tile_size_level0", "spacing_um", "mpp"):
        value = bag.attrs.get(name)
        facts[name] = None if value is None or value < 0 else value
    if form == "json":
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    for name, value in facts.items():
        click.echo(f"{name:<18} {'-' if value is None else value}")


@features.command("import")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@_reading
@click.option("--encoder", help="Encoder id to write; needed where a file does not say it.")
@click.option("--slide-id", help="Slide id to write instead of the file's own (one FILE only).")
@click.option("--output-dir", type=_FILE, required=True, help="Folder of <slide_id>.h5 files.")
def import_command(files: tuple[Path, ...], output_dir: Path, slide_id: str | None, **options: Any) -> None:
    """Write other tools' feature FILES in this project's layout.

    Every file that can be read is written; the exit code is 2 when one cannot.
    """
    from acpbench.features.exchange import import_file

    if len(files) > 1 and (slide_id or options["coords_path"]):
        raise InputError("--slide-id and --coords belong to one file; import the files one by one")
    failures = []
    for path in files:
        try:
            target = import_file(path, output_dir, slide_id=slide_id, **options)
        except InputError as error:
            failures.append(error)
            click.echo(f"not imported: {error}", err=True)
        else:
            click.echo(str(target))
    if failures:
        raise InputError(f"{len(failures)} of {len(files)} files were not imported")


@features.command("export")
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--to", type=click.Choice(["trident", "clam"]), required=True, help="Layout to write.")
@click.option("--output-dir", type=_FILE, required=True, help="Folder of that tool's job.")
def export_command(files: tuple[Path, ...], to: str, output_dir: Path) -> None:
    """Write this project's feature FILES in the layout of TRIDENT or CLAM.

    Every file that can be written is; the exit code is 2 when one cannot.
    """
    from acpbench.features.exchange import export_clam, export_trident
    from acpbench.features.store import read_features

    write = {"trident": export_trident, "clam": export_clam}[to]
    failures = []
    for path in files:
        try:
            targets = write(read_features(path), output_dir)
        except InputError as error:
            failures.append(error)
            where = "" if str(path) in str(error) else f"{path}: "
            click.echo(f"not exported: {where}{error}", err=True)
        else:
            click.echo("\n".join(map(str, targets)))
    if failures:
        raise InputError(f"{len(failures)} of {len(files)} files were not exported")
