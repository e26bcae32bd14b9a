"""Lay the tile grid of one slide; an unusable slide gives an empty grid with its reason."""

import json

from acpbench.core.files import read_json
from acpbench.slides.slide_files import local_copy
from acpbench.slides.tiling import TilingSettings, tile_slide_to_files

# Not a parameter: another disk is no reason to do the work again.
cohort = snakemake.config["cohorts"][snakemake.wildcards.cohort]
tile_slide_to_files(
    local_copy(snakemake.params.path, cohort.get("cache_dir")),
    snakemake.output.coords,
    TilingSettings(**json.loads(snakemake.params.tiling)),
    slide_id=snakemake.wildcards.slide_id,
    declared_mpp=snakemake.params.mpp,
    tissue_geojson=snakemake.input.tissue,
    found_before_filter=read_json(snakemake.input.quality)["status"] == "emptied_by_filter",
)
