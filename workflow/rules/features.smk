# Tile features of one slide by one encoder. On a GPU where the job was given one, else on the CPU: the same code.


# One job for one source of weights, before any extraction: jobs that run side by side never race a download.
rule prefetch_weights:
    input:
        encoders=ancient(study_file(STUDY.encoders_config)),
    output:
        "results/weights/{weights}.json",
    log:
        "results/logs/prefetch_weights/{weights}.log",
    wildcard_constraints:
        weights="[A-Za-z0-9._-]+",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    params:
        source=weights_rows,
        offline=STUDY.offline,
    script:
        "../scripts/prefetch_weights.py"


rule extract_features:
    input:
        slide=slide_input,
        coords="results/slides/{cohort}/{slide_id}/coords.h5",
        encoders=ancient(study_file(STUDY.encoders_config)),
        weights=weights_record,
        foreign=foreign_file,
    output:
        features="results/features/{cohort}/{encoder}/{slide_id}.h5",
        sidecar="results/features/{cohort}/{encoder}/{slide_id}.h5.json",
    log:
        "results/logs/extract_features/{cohort}/{encoder}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=3000,
        runtime=60,
        gpu=gpus,
    params:
        path=slide_path,
        spec=lambda wildcards: canonical(ENCODERS[wildcards.encoder]),
    script:
        "../scripts/extract_features.py"


rule index_features:
    input:
        lambda wildcards: per_slide(
            f"results/features/{{cohort}}/{wildcards.encoder}/{{slide_id}}.h5.json",
            wildcards.cohort,
        ),
    output:
        "results/features/{cohort}/{encoder}/index.csv",
    log:
        "results/logs/index_features/{cohort}/{encoder}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/index_features.py"
