# One slide: open, judge quality, find tissue; then lay the tile grid. A bad slide ends with its reason in
# quality.json and an empty grid, never as a failed job.


rule inspect_slide:
    input:
        slide=slide_input,
        mask=slide_mask,
    output:
        quality="results/slides/{cohort}/{slide_id}/quality.json",
        tissue="results/slides/{cohort}/{slide_id}/tissue.geojson",
        thumbnail="results/slides/{cohort}/{slide_id}/thumbnail.jpg",
    log:
        "results/logs/inspect_slide/{cohort}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=1500,
        runtime=20,
    params:
        path=slide_path,
        mpp=declared_mpp,
        tiling=canonical(STUDY.tiling.model_dump()),
        tissue=lambda wildcards: canonical(
            {
                "min_area_um2": STUDY.cohorts[wildcards.cohort].min_tissue_um2,
                "max_hole_um2": STUDY.cohorts[wildcards.cohort].max_hole_um2,
                "remove": STUDY.cohorts[wildcards.cohort].artefacts_removed,
            }
        ),
        mask_classes=lambda wildcards: STUDY.cohorts[wildcards.cohort].mask_classes,
    script:
        "../scripts/inspect_slide.py"


rule tile_slide:
    input:
        slide=slide_input,
        quality="results/slides/{cohort}/{slide_id}/quality.json",
        tissue="results/slides/{cohort}/{slide_id}/tissue.geojson",
    output:
        coords="results/slides/{cohort}/{slide_id}/coords.h5",
    log:
        "results/logs/tile_slide/{cohort}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=1500,
        runtime=20,
    params:
        path=slide_path,
        mpp=declared_mpp,
        tiling=canonical(STUDY.tiling.model_dump()),
    script:
        "../scripts/tile_slide.py"
