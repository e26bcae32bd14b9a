# The three lanes of one trajectory. One job writes six files; each is a target of its own.


rule score_trajectory:
    input:
        record="results/trajectories/{group}/{task}/{replicate}/run/run.json",
        manifest="results/trajectories/{group}/{task}/{replicate}/run/manifest.csv",
        adjudicated="results/trajectories/{group}/{task}/{replicate}/adjudicated.jsonl",
        task=task_file,
        labels="results/reference/{task}/labels.csv",
    output:
        workflow_score="results/trajectories/{group}/{task}/{replicate}/workflow_score.json",
        predictions="results/trajectories/{group}/{task}/{replicate}/predictions.csv",
        diagnostic="results/trajectories/{group}/{task}/{replicate}/diagnostic.json",
        cwas3="results/trajectories/{group}/{task}/{replicate}/cwas3.json",
        r6="results/trajectories/{group}/{task}/{replicate}/r6.json",
        reflection="results/trajectories/{group}/{task}/{replicate}/reflection.json",
    log:
        "results/logs/score_trajectory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    shell:
        "acp-bench score $(dirname {input.record:q}) --task {input.task:q} --labels {input.labels:q}"
        " --adjudicated {input.adjudicated:q} --output-dir $(dirname {output.workflow_score:q}) > {log:q} 2>&1"
