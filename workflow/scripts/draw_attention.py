"""Draw one slide's held-out attention over its thumbnail."""

from acpbench.mil.overlay import draw_reference_attention

draw_reference_attention(
    snakemake.input.labels,
    snakemake.input.attention,
    snakemake.input.features,
    snakemake.input.thumbnail,
    snakemake.input.quality,
    snakemake.wildcards.slide_id,
    snakemake.output.picture,
)
