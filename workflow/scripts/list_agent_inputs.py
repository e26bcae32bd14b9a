"""List what agents on a task are given, with hashes."""

import json
from pathlib import Path

from acpbench.core.config import TaskBinding
from acpbench.core.files import write_json
from acpbench.harness.settings import agent_inputs

binding = TaskBinding.model_validate(json.loads(snakemake.params.binding))
files = [Path(str(snakemake.input[name])) for name in ("labels", "slides", "features")]
document = agent_inputs(snakemake.wildcards.task, binding, snakemake.params.encoder, *files)
write_json(snakemake.output[0], document)
