"""Embed one slide's tiles."""

from acpbench.features.encoders import load_encoder
from acpbench.features.extract import extract_slide
from acpbench.features.registry import find_encoder, load_registry

spec = find_encoder(load_registry(snakemake.input.encoders), snakemake.wildcards.encoder)
extract_slide(
    snakemake.params.path,
    snakemake.input.coords,
    load_encoder(spec, offline=snakemake.params.offline),
    snakemake.output.features,
)
