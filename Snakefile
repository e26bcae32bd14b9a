from snakemake.utils import min_version

min_version("9.14.8")

# A study given with --configfile stands alone; without one the demo study runs.
if "study" not in config:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/manifests.smk"
include: "workflow/rules/encoders.smk"
include: "workflow/rules/cohorts.smk"
include: "workflow/rules/slides.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/mil.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/adjudication.smk"
include: "workflow/rules/scores.smk"
include: "workflow/rules/report.smk"


# Every file of the results, not the report alone: a lost file that lies between others would not be made again.
rule all:
    default_target: True
    input:
        "results/report/index.html",
        reference_targets(),
        trajectory_files("run/run.json"),
        [path for name in GRADE_FILES + SCORE_FILES for path in trajectory_files(name)],


rule reference:
    input:
        reference_targets(),


rule trajectories:
    input:
        trajectory_files("run/run.json"),


rule scores:
    input:
        [path for name in SCORE_FILES for path in trajectory_files(name)],
