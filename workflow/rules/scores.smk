# The three lanes of one trajectory. One job writes six files; each is a target of its own.


rule score_trajectory:
    input:
        record=RECORD + "run.json",
        manifest=RECORD + "manifest.csv",
        adjudicated="results/trajectories/{group}/{task}/{replicate}/adjudicated.jsonl",
        task=task_file,
        labels="results/reference/{task}/labels.csv",
    output:
        expand(
            "results/trajectories/{{group}}/{{task}}/{{replicate}}/{name}",
            name=SCORE_FILES,
        ),
    log:
        "results/logs/score_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    shell:
        "acp-bench score $(dirname {input.record:q}) --task {input.task:q} --labels {input.labels:q}"
        " --adjudicated {input.adjudicated:q} --output-dir $(dirname {output[0]:q}) > {log:q} 2>&1"
