"""Train and test one fold of the reference model."""

import json
from pathlib import Path

from acpbench.mil.crossval import train_reference_fold
from acpbench.mil.settings import MilSettings
from acpbench.mil.target import read_target

train_reference_fold(
    snakemake.input.labels,
    snakemake.params.features_dir,
    read_target(snakemake.input.target),
    snakemake.wildcards.encoder,
    int(snakemake.wildcards.fold),
    MilSettings(**{"seed": snakemake.params.seed} | json.loads(snakemake.params.mil)),
    Path(snakemake.output.predictions).parent,
    # Half of the job's memory; the rest is for torch, one step's activations and a slide being read.
    cache_mb=snakemake.resources.mem_mb / 2,
)
