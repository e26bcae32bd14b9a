"""Write the resolved study: what the run and report commands read."""

import json

from acpbench.core.config import parse_group, parse_study, study_document
from acpbench.core.files import write_json

study = parse_study(json.loads(snakemake.params.study), "study configuration")
groups = {name: parse_group(value, "groups") for name, value in json.loads(snakemake.params.groups).items()}
write_json(snakemake.output[0], study_document(study, groups))
