from snakemake.utils import min_version

min_version("9.14.8")

# A study given with --configfile stands alone; without one the demo study runs.
if "study" not in config:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/cohorts.smk"
include: "workflow/rules/slides.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/mil.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/adjudication.smk"
include: "workflow/rules/scores.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        "results/report/index.html",


rule reference:
    input:
        reference_targets(),


rule trajectories:
    input:
        trajectory_files("run/run.json"),


rule scores:
    input:
        [path for name in SCORE_FILES for path in trajectory_files(name)],
