# Slides and tables of a cohort: drawing (demo only), and the join with a reason for every dropped row.


rule draw_slide:
    output:
        "results/generated/{cohort}/slides/{slide_id}.svs",
    log:
        "results/logs/draw_slide/{cohort}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        row=generated_row,
    script:
        "../scripts/draw_slide.py"


rule join_cohort:
    input:
        manifest=lambda wildcards: study_file(STUDY.cohorts[wildcards.cohort].manifest),
        clinical=lambda wildcards: beside_study(
            STUDY.cohorts[wildcards.cohort].clinical
        )
        or [],
        quality=lambda wildcards: per_slide(
            "results/slides/{cohort}/{slide_id}/quality.json", wildcards.cohort
        ),
        coords=lambda wildcards: per_slide(
            "results/slides/{cohort}/{slide_id}/coords.h5", wildcards.cohort
        ),
    output:
        slides="results/cohorts/{cohort}/slides.csv",
        exclusions="results/cohorts/{cohort}/exclusions.csv",
        flow="results/cohorts/{cohort}/consort.json",
        page="results/cohorts/{cohort}/consort.md",
    log:
        "results/logs/join_cohort/{cohort}.log",
    conda:
        "../envs/acpbench.yaml"
    params:
        options=lambda wildcards: canonical(manifest_options(wildcards.cohort)),
        clinical_id=lambda wildcards: (
            STUDY.cohorts[wildcards.cohort].columns.clinical_patient_id
            or STUDY.cohorts[wildcards.cohort].columns.patient_id
        ),
    script:
        "../scripts/join_cohort.py"
