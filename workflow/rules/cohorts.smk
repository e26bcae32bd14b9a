# Slides and tables of a cohort: drawing (demo only), and the join with a reason for every dropped row.


def generated_row(wildcards):
    """The manifest row a generated slide is drawn from."""
    cohort = STUDY.cohorts[wildcards.cohort]
    for row in read_csv(study_file(cohort.manifest)):
        if row[cohort.columns.slide_id] == wildcards.slide_id:
            return canonical(row)
    raise WorkflowError(f"{wildcards.slide_id} is not in the manifest of {wildcards.cohort}")


rule draw_slide:
    output:
        "results/generated/{cohort}/slides/{slide_id}.svs",
    params:
        row=generated_row,
    log:
        "results/logs/draw_slide/{cohort}/{slide_id}.log",
    resources:
        mem_mb=1000,
        runtime=10,
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/draw_slide.py"


rule join_cohort:
    input:
        manifest=lambda wildcards: study_file(STUDY.cohorts[wildcards.cohort].manifest),
        quality=lambda wildcards: per_slide(
            "results/slides/{cohort}/{slide_id}/quality.json", wildcards.cohort
        ),
        coords=lambda wildcards: per_slide(
            "results/slides/{cohort}/{slide_id}/coords.h5", wildcards.cohort
        ),
    output:
        slides="results/cohorts/{cohort}/slides.csv",
        exclusions="results/cohorts/{cohort}/exclusions.csv",
    params:
        columns=lambda wildcards: STUDY.cohorts[wildcards.cohort].columns.model_dump(),
        base=lambda wildcards: (
            f"results/generated/{wildcards.cohort}"
            if STUDY.cohorts[wildcards.cohort].generator
            else None
        ),
    log:
        "results/logs/join_cohort/{cohort}.log",
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/join_cohort.py"
