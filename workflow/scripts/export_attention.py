"""Write one slide's held-out attention as objects for QuPath."""

from acpbench.mil.reference_attention import export_attention

export_attention(
    snakemake.input.attention,
    snakemake.input.coords,
    snakemake.wildcards.slide_id,
    snakemake.output.geojson,
)
