"""List a cohort's feature files with their hashes."""

from acpbench.features.store import write_index

write_index(snakemake.input, snakemake.output[0])
