"""Join a cohort's manifest with what became of each slide, and with the clinical table."""

import json
from pathlib import Path

from acpbench.core.files import read_json
from acpbench.slides.cohort import coords_count, write_cohort
from acpbench.slides.manifest import read_clinical, read_manifest

clinical = snakemake.input.clinical
write_cohort(
    Path(snakemake.output.slides).parent,
    # Whether a slide is there was settled by its inspection: it may have been archived since.
    read_manifest(snakemake.input.manifest, **json.loads(snakemake.params.options), files="resolve"),
    {Path(path).parent.name: read_json(path) for path in snakemake.input.quality},
    {Path(path).parent.name: coords_count(path) for path in snakemake.input.coords},
    read_clinical(clinical, snakemake.params.clinical_id) if clinical else None,
    name=snakemake.wildcards.cohort,
)
