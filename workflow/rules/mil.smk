# The reference result: labels and patient-grouped folds, one ABMIL a fold with nested validation, pooled
# held-out predictions, metrics with intervals, attention pictures.


rule assign_labels:
    input:
        slides=lambda wildcards: f"results/cohorts/{cohort_of(wildcards)}/slides.csv",
        definition=lambda wildcards: (
            task_file(wildcards) if STUDY.tasks[wildcards.task].definition else []
        ),
    output:
        labels="results/reference/{task}/labels.csv",
        summary="results/reference/{task}/labels.csv.json",
        target="results/reference/{task}/target.json",
    log:
        "results/logs/assign_labels/{task}.log",
    conda:
        "../envs/acpbench.yaml"
    params:
        binding=lambda wildcards: canonical(STUDY.tasks[wildcards.task].model_dump()),
        n_folds=STUDY.folds,
        seed=STUDY.seed,
    script:
        "../scripts/assign_labels.py"


rule train_fold:
    input:
        labels="results/reference/{task}/labels.csv",
        target="results/reference/{task}/target.json",
        features=lambda wildcards: per_slide(
            f"results/features/{{cohort}}/{wildcards.encoder}/{{slide_id}}.h5.json",
            cohort_of(wildcards),
        ),
    output:
        predictions="results/reference/{task}/{encoder}/folds/{fold}/predictions.csv",
        model="results/reference/{task}/{encoder}/folds/{fold}/model.pt",
        history="results/reference/{task}/{encoder}/folds/{fold}/history.csv",
        attention="results/reference/{task}/{encoder}/folds/{fold}/attention.h5",
        done="results/reference/{task}/{encoder}/folds/{fold}/fold.json",
    log:
        "results/logs/train_fold/{task}/{encoder}/{fold}.log",
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=3000,
        runtime=120,
    params:
        features_dir=lambda wildcards: f"results/features/{cohort_of(wildcards)}/{wildcards.encoder}",
        mil=canonical(STUDY.mil),
        n_folds=STUDY.folds,
        seed=STUDY.seed,
    script:
        "../scripts/train_fold.py"


rule pool_folds:
    input:
        labels="results/reference/{task}/labels.csv",
        summary="results/reference/{task}/labels.csv.json",
        target="results/reference/{task}/target.json",
        folds=expand(
            "results/reference/{{task}}/{{encoder}}/folds/{fold}/{name}",
            fold=range(STUDY.folds),
            name=["model.pt", "history.csv", "attention.h5", "fold.json"],
        ),
        predictions=expand(
            "results/reference/{{task}}/{{encoder}}/folds/{fold}/predictions.csv",
            fold=range(STUDY.folds),
        ),
        control=control_file("metrics.json"),
        control_predictions=control_file("predictions.csv"),
    output:
        splits="results/reference/{task}/{encoder}/splits.csv",
        predictions="results/reference/{task}/{encoder}/predictions.csv",
        reliability="results/reference/{task}/{encoder}/reliability.svg",
        bins="results/reference/{task}/{encoder}/reliability.csv",
        metrics="results/reference/{task}/{encoder}/metrics.json",
        report="results/reference/{task}/{encoder}/report.md",
    log:
        "results/logs/pool_folds/{task}/{encoder}.log",
    conda:
        "../envs/acpbench.yaml"
    params:
        n_resamples=STUDY.bootstrap_resamples,
        seed=STUDY.seed,
        control=STUDY.control_encoder,
    script:
        "../scripts/pool_folds.py"


rule draw_attention:
    input:
        labels="results/reference/{task}/labels.csv",
        attention=expand(
            "results/reference/{{task}}/{{encoder}}/folds/{fold}/attention.h5",
            fold=range(STUDY.folds),
        ),
        features=lambda wildcards: (
            f"results/features/{cohort_of(wildcards)}/{wildcards.encoder}/{wildcards.slide_id}.h5.json"
        ),
        coords=lambda wildcards: (
            f"results/slides/{cohort_of(wildcards)}/{wildcards.slide_id}/coords.h5"
        ),
        thumbnail=lambda wildcards: (
            f"results/slides/{cohort_of(wildcards)}/{wildcards.slide_id}/thumbnail.jpg"
        ),
        quality=lambda wildcards: (
            f"results/slides/{cohort_of(wildcards)}/{wildcards.slide_id}/quality.json"
        ),
        slide=lambda wildcards: slide_input(slide_of(wildcards)),
    output:
        picture="results/reference/{task}/{encoder}/attention/{slide_id}.jpg",
        top_tiles="results/reference/{task}/{encoder}/top_tiles/{slide_id}.jpg",
        top_table="results/reference/{task}/{encoder}/top_tiles/{slide_id}.csv",
    log:
        "results/logs/draw_attention/{task}/{encoder}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    params:
        path=lambda wildcards: slide_path(slide_of(wildcards)),
    script:
        "../scripts/draw_attention.py"


# For a slide asked for by name: a target of its own, as one file may hold a hundred thousand tiles.
rule export_attention:
    input:
        attention=expand(
            "results/reference/{{task}}/{{encoder}}/folds/{fold}/attention.h5",
            fold=range(STUDY.folds),
        ),
        coords=lambda wildcards: (
            f"results/slides/{cohort_of(wildcards)}/{wildcards.slide_id}/coords.h5"
        ),
    output:
        geojson="results/reference/{task}/{encoder}/qupath/{slide_id}.geojson",
    log:
        "results/logs/export_attention/{task}/{encoder}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/export_attention.py"
