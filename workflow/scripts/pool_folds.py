"""Pool the folds' held-out predictions and score them."""

from pathlib import Path

from acpbench.mil.pooling import pool_reference
from acpbench.mil.target import read_target

pool_reference(
    [Path(path).parent for path in snakemake.input.predictions],
    snakemake.input.labels,
    read_target(snakemake.input.target),
    snakemake.wildcards.encoder,
    Path(snakemake.output.metrics).parent,
    n_bootstrap=snakemake.params.n_resamples,
    seed=snakemake.params.seed,
    controls={snakemake.params.control: snakemake.input.control} if snakemake.input.control else None,
)
