# Agent runs. A finished run costs money and cannot be repeated: every input is ancient, there are no params
# and no retries, the record is protected, and the profiles leave `code` and `software-env` out of the triggers. Rerun =
# delete its run/ folder.


rule write_study:
    output:
        "results/study.json",
    log:
        "results/logs/write_study.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    params:
        study=canonical(STUDY.model_dump()),
        groups=canonical(
            {name: GROUPS[name].model_dump() for name in STUDY.trajectories.groups}
        ),
    script:
        "../scripts/write_study.py"


rule run_agent:
    input:
        study=ancient("results/study.json"),
        task=lambda wildcards: ancient(task_file(wildcards)),
        labels=ancient("results/reference/{task}/labels.csv"),
        slides=lambda wildcards: ancient(
            f"results/cohorts/{cohort_of(wildcards)}/slides.csv"
        ),
        features=lambda wildcards: ancient(
            f"results/features/{cohort_of(wildcards)}/{STUDY.agent_encoder}/index.csv"
        ),
    output:
        record=protected("results/trajectories/{group}/{task}/{replicate}/run/run.json"),
        stream=protected(
            "results/trajectories/{group}/{task}/{replicate}/run/stream.jsonl"
        ),
        tools=protected(
            "results/trajectories/{group}/{task}/{replicate}/run/tools.jsonl"
        ),
        trajectory=protected(
            "results/trajectories/{group}/{task}/{replicate}/run/trajectory.json"
        ),
        manifest=protected(
            "results/trajectories/{group}/{task}/{replicate}/run/manifest.csv"
        ),
    log:
        "results/logs/run_agent/{group}/{task}/{replicate}.log",
    retries: 0
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    shell:
        "acp-bench run --study {input.study:q} --group {wildcards.group:q} --task {wildcards.task:q}"
        " --replicate {wildcards.replicate:q} --task-file {input.task:q} --labels {input.labels:q}"
        " --slides {input.slides:q} --output $(dirname {output.record:q}) > {log:q} 2>&1"
