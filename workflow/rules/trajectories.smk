# Agent runs. A finished run costs money and cannot be repeated: its inputs are ancient and have names that no
# configuration changes, there are no params and no retries, the record is protected, and the profiles leave `code`
# and `software-env` out of the triggers. Rerun = delete its run/ folder.


rule write_study:
    output:
        "results/study.json",
    log:
        "results/logs/write_study.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    params:
        # In the order of the configuration, which is the order of the report.
        study=json.dumps(STUDY.model_dump()),
        groups=json.dumps(
            {name: GROUPS[name].model_dump() for name in STUDY.trajectories.groups}
        ),
    script:
        "../scripts/write_study.py"


rule list_agent_inputs:
    input:
        task=task_file,
        labels="results/reference/{task}/labels.csv",
        slides=lambda wildcards: f"results/cohorts/{cohort_of(wildcards)}/slides.csv",
        features=lambda wildcards: f"results/features/{cohort_of(wildcards)}/{STUDY.agent_encoder}/index.csv",
    output:
        "results/reference/{task}/agent_inputs.json",
    log:
        "results/logs/list_agent_inputs/{task}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    params:
        binding=lambda wildcards: canonical(STUDY.tasks[wildcards.task].model_dump()),
        encoder=STUDY.agent_encoder,
    script:
        "../scripts/list_agent_inputs.py"


rule wait_for_memory:
    # Under a name that is the same with and without memory, so that switching it on repeats no finished run.
    input:
        earlier_record,
    output:
        "results/trajectories/{group}/{task}/{replicate}/runs_after.txt",
    log:
        "results/logs/wait_for_memory/{group}/{task}/{replicate}.log",
    localrule: True
    conda:
        "../envs/acpbench.yaml"
    shell:
        "echo {input:q} > {output:q} 2> {log:q}"


rule run_agent:
    input:
        study=ancient("results/study.json"),
        inputs=ancient("results/reference/{task}/agent_inputs.json"),
        turn=ancient("results/trajectories/{group}/{task}/{replicate}/runs_after.txt"),
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
        runtime=agent_minutes,
    shell:
        "acp-bench run --study {input.study:q} --inputs {input.inputs:q} --group {wildcards.group:q}"
        " --replicate {wildcards.replicate:q} --output $(dirname {output.record:q}) > {log:q} 2>&1"
