# One slide: open, judge quality, find tissue; then lay the tile grid. A bad slide ends with its reason in
# quality.json and an empty grid, never as a failed job.


def slide_input(wildcards):
    """The slide file; a missing one is left to the inspection to report."""
    path = SOURCES[wildcards.cohort][wildcards.slide_id]
    if STUDY.cohorts[wildcards.cohort].generator or os.path.exists(path):
        return path
    return []


def declared_mpp(wildcards):
    """Micrometres per pixel that the manifest or the configuration declares."""
    cohort = STUDY.cohorts[wildcards.cohort]
    if cohort.columns.mpp:
        for row in read_csv(study_file(cohort.manifest)):
            if row[cohort.columns.slide_id] == wildcards.slide_id and row[cohort.columns.mpp]:
                return row[cohort.columns.mpp]
    return cohort.mpp


rule inspect_slide:
    input:
        slide=slide_input,
    output:
        quality="results/slides/{cohort}/{slide_id}/quality.json",
        tissue="results/slides/{cohort}/{slide_id}/tissue.geojson",
        thumbnail="results/slides/{cohort}/{slide_id}/thumbnail.jpg",
    params:
        path=lambda wildcards: SOURCES[wildcards.cohort][wildcards.slide_id],
        mpp=declared_mpp,
        tiling=canonical(STUDY.tiling.model_dump()),
    log:
        "results/logs/inspect_slide/{cohort}/{slide_id}.log",
    resources:
        mem_mb=1500,
        runtime=20,
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/inspect_slide.py"


rule tile_slide:
    input:
        slide=slide_input,
        quality="results/slides/{cohort}/{slide_id}/quality.json",
        tissue="results/slides/{cohort}/{slide_id}/tissue.geojson",
    output:
        coords="results/slides/{cohort}/{slide_id}/coords.h5",
    params:
        path=lambda wildcards: SOURCES[wildcards.cohort][wildcards.slide_id],
        mpp=declared_mpp,
        tiling=canonical(STUDY.tiling.model_dump()),
    log:
        "results/logs/tile_slide/{cohort}/{slide_id}.log",
    resources:
        mem_mb=1500,
        runtime=20,
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/tile_slide.py"
