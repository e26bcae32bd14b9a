"""Join a cohort's manifest with what became of each slide."""

from pathlib import Path

from acpbench.core.files import read_json
from acpbench.slides.cohort import coords_count, read_manifest, write_cohort

columns = {name: column for name, column in snakemake.params.columns.items() if column}
manifest = read_manifest(snakemake.input.manifest, columns, base=snakemake.params.base)
write_cohort(
    Path(snakemake.output.slides).parent,
    manifest,
    {Path(path).parent.name: read_json(path) for path in snakemake.input.quality},
    {Path(path).parent.name: coords_count(path) for path in snakemake.input.coords},
)
