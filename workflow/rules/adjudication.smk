# From a record to a final status per checkpoint: deterministic rules, the semantic judge, the human overlay.
# The judge has a rule of its own: it may be paid for, and its cheap siblings never rerun it.


rule check_trajectory:
    input:
        record="results/trajectories/{group}/{task}/{replicate}/run/run.json",
        manifest="results/trajectories/{group}/{task}/{replicate}/run/manifest.csv",
        task=task_file,
        labels="results/reference/{task}/labels.csv",
        rubric=study_file(STUDY.rubric),
    output:
        "results/trajectories/{group}/{task}/{replicate}/checks.jsonl",
    log:
        "results/logs/check_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    shell:
        "acp-bench check $(dirname {input.record:q}) --task {input.task:q} --labels {input.labels:q}"
        " --rubric {input.rubric:q} --output {output:q} > {log:q} 2>&1"


rule judge_trajectory:
    input:
        record="results/trajectories/{group}/{task}/{replicate}/run/run.json",
        manifest="results/trajectories/{group}/{task}/{replicate}/run/manifest.csv",
        task=task_file,
        rubric=study_file(STUDY.rubric),
    output:
        "results/trajectories/{group}/{task}/{replicate}/judgements.jsonl",
    log:
        "results/logs/judge_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    params:
        judge=STUDY.judge,
    shell:
        "acp-bench judge $(dirname {input.record:q}) --task {input.task:q} --rubric {input.rubric:q}"
        " --judge {params.judge:q} --output {output:q} > {log:q} 2>&1"


rule adjudicate_trajectory:
    input:
        checks="results/trajectories/{group}/{task}/{replicate}/checks.jsonl",
        judgements="results/trajectories/{group}/{task}/{replicate}/judgements.jsonl",
        reviews=review_files(),
    output:
        "results/trajectories/{group}/{task}/{replicate}/adjudicated.jsonl",
    log:
        "results/logs/adjudicate_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    params:
        reviews=study_file(STUDY.reviews),
    shell:
        "acp-bench adjudicate --checks {input.checks:q} --judgements {input.judgements:q}"
        " --reviews {params.reviews:q} --output {output:q} > {log:q} 2>&1"
