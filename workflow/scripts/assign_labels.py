"""Join labels to a cohort's slides and deal its patients into folds."""

import json

from acpbench.core.config import TaskBinding
from acpbench.core.files import write_json
from acpbench.mil.label_table import write_label_table
from acpbench.mil.target import make_target
from acpbench.tasks.catalogue import load_task

binding = TaskBinding.model_validate(json.loads(snakemake.params.binding))
task = load_task(snakemake.input.definition) if binding.definition else None
target = make_target(snakemake.wildcards.task, binding, task)
write_json(snakemake.output.target, target.model_dump())
write_label_table(
    snakemake.input.slides,
    binding.columns,
    target,
    snakemake.params.n_folds,
    snakemake.params.seed,
    snakemake.output.labels,
)
