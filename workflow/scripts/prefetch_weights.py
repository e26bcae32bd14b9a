"""Make sure that an encoder's weights are here, and record where and what they are."""

from acpbench.features.registry import load_registry
from acpbench.features.weights import prefetch_weights

name = snakemake.wildcards.weights
rows = load_registry(snakemake.input.encoders).values()
spec = next(row for row in rows if row.needs_weights and row.source.name == name)
prefetch_weights(spec, snakemake.output[0], offline=snakemake.params.offline)
