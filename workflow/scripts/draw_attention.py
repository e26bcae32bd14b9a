"""Draw one slide's held-out attention over its thumbnail, and its top tiles."""

from acpbench.mil.reference_attention import draw_reference_attention

draw_reference_attention(
    snakemake.input.labels,
    snakemake.input.attention,
    snakemake.input.features,
    snakemake.input.coords,
    snakemake.input.thumbnail,
    snakemake.input.quality,
    snakemake.params.path,
    snakemake.wildcards.slide_id,
    snakemake.output.picture,
    snakemake.output.top_tiles,
    snakemake.output.top_table,
)
