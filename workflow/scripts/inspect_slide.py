"""Inspect one slide; the outputs are written whatever its state."""

import json
from pathlib import Path

from acpbench.slides.inspect import inspect_slide_to_files
from acpbench.slides.slide_files import local_copy
from acpbench.slides.tiling import TilingSettings
from acpbench.slides.tissue import TissueSettings

# Not a parameter: another disk is no reason to do the work again.
cohort = snakemake.config["cohorts"][snakemake.wildcards.cohort]
inspect_slide_to_files(
    local_copy(snakemake.params.path, cohort.get("cache_dir")),
    Path(snakemake.output.quality).parent,
    slide_id=snakemake.wildcards.slide_id,
    declared_mpp=snakemake.params.mpp,
    tiling=TilingSettings(**json.loads(snakemake.params.tiling)),
    settings=TissueSettings(**json.loads(snakemake.params.tissue)),
    mask=snakemake.input.mask or None,
    mask_classes=snakemake.params.mask_classes,
)
