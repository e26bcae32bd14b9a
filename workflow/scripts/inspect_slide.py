"""Inspect one slide; the outputs are written whatever its state."""

import json
from pathlib import Path

from acpbench.slides.inspect import inspect_slide_to_files
from acpbench.slides.tiling import TilingSettings

mpp = snakemake.params.mpp
inspect_slide_to_files(
    snakemake.params.path,
    Path(snakemake.output.quality).parent,
    slide_id=snakemake.wildcards.slide_id,
    declared_mpp=None if mpp is None else float(mpp),
    tiling=TilingSettings(**json.loads(snakemake.params.tiling)),
)
