"""Lay the tile grid of one slide; an unusable slide gives an empty grid with its reason."""

import json

from acpbench.slides.tiling import TilingSettings, tile_slide_to_files

mpp = snakemake.params.mpp
tile_slide_to_files(
    snakemake.params.path,
    snakemake.output.coords,
    TilingSettings(**json.loads(snakemake.params.tiling)),
    slide_id=snakemake.wildcards.slide_id,
    declared_mpp=None if mpp is None else float(mpp),
    tissue_geojson=snakemake.input.tissue,
)
