# From a record to a final status per checkpoint: deterministic rules, the semantic judge, the human overlay.
# The judge has a rule of its own: it may be paid for, and its cheap siblings never rerun it.
RUBRIC = study_file(STUDY.rubric)
REVIEWS = sorted(str(path) for path in Path(study_file(STUDY.reviews)).glob("*.jsonl"))
RECORD = "results/trajectories/{group}/{task}/{replicate}/run/"


rule check_trajectory:
    input:
        record=RECORD + "run.json",
        manifest=RECORD + "manifest.csv",
        task=task_file,
        labels="results/reference/{task}/labels.csv",
        rubric=RUBRIC,
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
        record=RECORD + "run.json",
        manifest=RECORD + "manifest.csv",
        task=task_file,
        rubric=RUBRIC,
    output:
        "results/trajectories/{group}/{task}/{replicate}/judgements.jsonl",
    params:
        judge=STUDY.judge,
    log:
        "results/logs/judge_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    shell:
        "acp-bench judge $(dirname {input.record:q}) --task {input.task:q} --rubric {input.rubric:q}"
        " --judge {params.judge:q} --output {output:q} > {log:q} 2>&1"


rule adjudicate_trajectory:
    input:
        checks="results/trajectories/{group}/{task}/{replicate}/checks.jsonl",
        judgements="results/trajectories/{group}/{task}/{replicate}/judgements.jsonl",
        reviews=REVIEWS,
    output:
        "results/trajectories/{group}/{task}/{replicate}/adjudicated.jsonl",
    params:
        reviews=study_file(STUDY.reviews),
    log:
        "results/logs/adjudicate_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    shell:
        "acp-bench adjudicate --checks {input.checks:q} --judgements {input.judgements:q}"
        " --reviews {params.reviews:q} --output {output:q} > {log:q} 2>&1"
