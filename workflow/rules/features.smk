# Tile features of one slide by one encoder. CUDA when there is one, else the CPU: the same code.


rule extract_features:
    input:
        slide=slide_input,
        coords="results/slides/{cohort}/{slide_id}/coords.h5",
        encoders=ancient(study_file(STUDY.encoders_config)),
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
    params:
        path=slide_path,
        spec=lambda wildcards: canonical(ENCODERS[wildcards.encoder]),
        offline=STUDY.offline,
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
