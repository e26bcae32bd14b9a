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
        target="results/reference/{task}/target.json",
        predictions=expand(
            "results/reference/{{task}}/{{encoder}}/folds/{fold}/predictions.csv",
            fold=range(STUDY.folds),
        ),
        control=lambda wildcards: (
            f"results/reference/{wildcards.task}/{STUDY.control_encoder}/metrics.json"
            if STUDY.control_encoder in STUDY.encoders
            and wildcards.encoder != STUDY.control_encoder
            else []
        ),
    output:
        splits="results/reference/{task}/{encoder}/splits.csv",
        predictions="results/reference/{task}/{encoder}/predictions.csv",
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
        thumbnail=lambda wildcards: (
            f"results/slides/{cohort_of(wildcards)}/{wildcards.slide_id}/thumbnail.jpg"
        ),
        quality=lambda wildcards: (
            f"results/slides/{cohort_of(wildcards)}/{wildcards.slide_id}/quality.json"
        ),
    output:
        picture="results/reference/{task}/{encoder}/attention/{slide_id}.jpg",
    log:
        "results/logs/draw_attention/{task}/{encoder}/{slide_id}.log",
    conda:
        "../envs/acpbench.yaml"
    script:
        "../scripts/draw_attention.py"
