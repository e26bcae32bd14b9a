"""List a cohort's feature files with their hashes."""

from pathlib import Path

from acpbench.core.files import read_json, write_csv

rows = []
for sidecar in sorted(snakemake.input):
    rows.append({"path": Path(sidecar).name.removesuffix(".json"), **read_json(sidecar)})
write_csv(
    snakemake.output[0], ["slide_id", "encoder", "status", "n_tiles", "path", "sha256", "cache_key"], rows
)
