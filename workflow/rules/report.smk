# The study report: one page, one page a trajectory, every figure as SVG and PNG, every table as CSV.


rule render_report:
    input:
        study="results/study.json",
        rubric=study_file(STUDY.rubric),
        scores=[path for name in SCORE_FILES for path in trajectory_files(name)],
        adjudicated=trajectory_files("adjudicated.jsonl"),
        reference=reference_targets(),
        exclusions=expand(
            "results/cohorts/{cohort}/exclusions.csv", cohort=STUDY.cohorts
        ),
    output:
        index=report(
            "results/report/index.html",
            category="Study report",
            caption="../report/index.rst",
        ),
        scores=report(
            "results/report/figures/workflow_score_by_group.svg",
            category="Automation ability",
            caption="../report/workflow_score.rst",
        ),
        stages=report(
            "results/report/figures/stage_heatmap.svg",
            category="Automation ability",
            caption="../report/stages.rst",
        ),
        groups="results/report/tables/groups.csv",
        trajectories="results/report/tables/trajectories.csv",
    log:
        "results/logs/render_report.log",
    conda:
        "../envs/acpbench.yaml"
    resources:
        mem_mb=2000,
        runtime=20,
    shell:
        "acp-bench report --results results --study {input.study:q} --output $(dirname {output.index:q})"
        " > {log:q} 2>&1"
