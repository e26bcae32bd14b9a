"""Write the study report: pages, tables and figures that stand alone, byte for byte the same on a rebuild."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from acpbench import __version__
from acpbench.core.files import write_text
from acpbench.core.progress import track
from acpbench.report import figures, palette, summary, tables
from acpbench.report.collect import (
    OFFLINE_JUDGE,
    STAGES,
    STATUSES,
    StudyData,
    collect,
    load_study,
    over_control,
    per_fold,
    primary,
)
from acpbench.report.markdown import to_html
from acpbench.report.timeline import seconds
from acpbench.report.trajectory_page import page_context
from acpbench.report.untrusted import clean, mapping, number, short

TEMPLATES = Path(__file__).parent / "templates"
SCORING_DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "scoring.md"
"""The scoring rules as text. Present in a source tree; an installed package has none."""
_PAGE = re.compile(r"[A-Za-z0-9._-]+\.html")
SCORE_WORDS = {
    "item_weighted": "weighted over all items",
    "stage_mean": "mean of the four stage scores",
}


def number_text(value: float | None, digits: int = 3) -> str | None:
    """A number as shown: fixed digits, a true minus sign; ``None`` stays ``None`` (the template prints –)."""
    return None if value is None else f"{value:.{digits}f}".replace("-", "−")


def duration_text(seconds: float | None) -> str | None:
    """Seconds as ``850 ms``, ``12.3 s``, ``4 min 05 s`` or ``2 h 03 min``."""
    if seconds is None or seconds < 0:
        return None
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment_text(value: Any) -> str:
    """An ISO time as ``2026-01-02 03:04:05 UTC``; anything else as short text."""
    found = seconds(value)
    if found is None:
        return short(value, 40)
    return datetime.fromtimestamp(found, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def finalize(value: Any) -> Any:
        # Markup is our own; every other text may be an agent's.
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.filters |= {
        "num": number_text,
        "duration": duration_text,
        "moment": moment_text,
        "heat": palette.heat_step,
        "short": short,
    }
    environment.globals |= {
        "version": __version__,
        "css": Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        "light": Markup(palette.css_variables()),
        "dark": Markup(palette.css_variables(dark=True)),
        "script": Markup(script),
        "script_digest": digest,
        "offline_judge": OFFLINE_JUDGE,
        "statuses": STATUSES,
        "stages": STAGES,
    }
    return environment


def _groups(data: StudyData) -> Iterator[dict[str, Any]]:
    study = data.study
    for group in study.groups:
        members = summary.of_group(data, group.id)
        yield {
            "id": group.id,
            "label": group.label,
            "description": group.description,
            "n_recorded": sum(entry.recorded for entry in members),
            "n_completed": sum(entry.run_status == "completed" for entry in members),
            "n_scored": sum(summary.is_scored(entry) for entry in members),
            "total": len(members),
            **{name: summary.mean_at(members, "workflow_score.json", name) for name in summary.AGGREGATIONS},
            "stages": {
                name: summary.mean_at(members, "workflow_score.json", "stages", name) for name in STAGES
            },
            "subcapabilities": {
                name: summary.mean_at(members, "workflow_score.json", "subcapabilities", name)
                for name in summary.SUBCAPABILITIES
            },
            "passes": {
                (threshold, name): summary.passes(members, threshold, name)
                for threshold in summary.THRESHOLDS
                for name in summary.AGGREGATIONS
            },
            "cwas3": summary.mean_at(members, "cwas3.json", "score"),
            "r6": summary.mean_at(members, "r6.json", "score"),
            "cwas3_counts": {
                part: summary.component_counts(members, "cwas3.json", part) for part in summary.CWAS3_PARTS
            },
            "r6_n": max(
                summary.component_counts(members, "r6.json", part).total() for part in summary.R6_PARTS
            ),
            "r6_counts": {
                part: summary.component_counts(members, "r6.json", part) for part in summary.R6_PARTS
            },
            "diagnostic": {
                task.id: tables.diagnostic_cell([entry for entry in members if entry.task == task.id])
                for task in study.tasks
            },
            "funnel": summary.funnel(members),
            "reflection": summary.reflection_counts(members),
            "coverage": summary.coverage(members),
        }


def _references(data: StudyData) -> list[dict[str, Any]]:
    found = []
    for task in data.study.reference_tasks:
        rows = [
            {
                "encoder": entry.encoder,
                "control": entry.encoder == data.study.control_encoder,
                **primary(entry),
                "over_control": over_control(entry),
                "folds_alone": per_fold(entry),
                "calibration": {
                    name: number(mapping(entry.metrics.get("metrics")).get(name)) for name in ("brier", "ECE")
                },
            }
            for entry in data.references
            if entry.task == task
        ]
        metrics = {row["metric"] for row in rows if row["metric"]}
        rows.sort(key=lambda row: row["control"])
        found.append({"task": task, "rows": rows, "metric": metrics.pop() if len(metrics) == 1 else None})
    return found


def _trajectory_rows(data: StudyData) -> Iterator[dict[str, Any]]:
    for entry in data.trajectories:
        reflection = entry.score("reflection.json")
        yield {
            "entry": entry,
            "status": entry.run_status or ("no status" if entry.recorded else "not recorded"),
            "diagnostic": summary.diagnostic_value(entry),
            **{name: summary.value_at(entry, "workflow_score.json", name) for name in summary.AGGREGATIONS},
            "cwas3": summary.value_at(entry, "cwas3.json", "score"),
            "r6": summary.value_at(entry, "r6.json", "score"),
            "direction": short(reflection["direction"], 20) if reflection.get("direction") else None,
            "problems": [f"{name} {why}" for name, why in sorted(entry.problems.items())],
        }


def _alts(data: StudyData) -> dict[str, str]:
    groups = ", ".join(group.label for group in data.study.groups)
    return {
        "workflow_score_by_group": f"Mean workflow score of {groups}; values in the table.",
        "pass_counts": f"Trajectories at or above 0.70, 0.75, 0.80 of {groups}; counts in the table.",
        "lanes": f"Three lanes on separate scales for {groups}; values in the table.",
        "reference_metrics": "Primary metric with 95 % interval by task and encoder; values in the table.",
        "reliability": "Share of patients in which a predicted probability came true, by task and encoder.",
        "funnel": "Trajectories that reach each step of the diagnostic lane; counts in the table.",
    }


def index_context(data: StudyData, svgs: dict[str, str]) -> dict[str, Any]:
    """Everything the index template needs."""
    everyone = data.trajectories
    items = summary.item_totals(everyone)
    groups = list(_groups(data))
    return {
        "study": data.study,
        "total": len(everyone),
        "n_recorded": sum(entry.recorded for entry in everyone),
        "n_scored": sum(summary.is_scored(entry) for entry in everyone),
        "run_counts": summary.run_counts(data),
        "n_unsandboxed": sum(entry.sandbox == "unsandboxed" for entry in everyone),
        "decided": summary.decided_totals(everyone),
        "judges": tables.judges(data),
        "bases": summary.bases(everyone),
        "groups": groups,
        "task_metrics": {
            task.id: ", ".join(
                sorted({group["diagnostic"][task.id]["metric"] or "" for group in groups} - {""})
            )
            for task in data.study.tasks
        },
        "overall": {
            name: summary.mean_at(everyone, "workflow_score.json", name) for name in summary.AGGREGATIONS
        },
        "overall_passes": {
            (threshold, name): summary.passes(everyone, threshold, name)
            for threshold in summary.THRESHOLDS
            for name in summary.AGGREGATIONS
        },
        "coverage": summary.coverage(everyone),
        "status_totals": summary.status_totals(everyone),
        "not_implemented": [
            (key[0], counts["not_implemented"]) for key, counts in items.items() if counts["not_implemented"]
        ],
        "unscored": [(key[0], counts["unscored"]) for key, counts in items.items() if counts["unscored"]],
        "funnel": summary.funnel(everyone),
        "references": _references(data),
        "folds": sorted({int(found) for entry in data.references if (found := primary(entry)["folds"])}),
        "cohorts": [summary.cohort_flow(cohort) for cohort in data.cohorts],
        "rows": list(_trajectory_rows(data)),
        "subcapability_names": summary.SUBCAPABILITIES,
        "cwas3_parts": summary.CWAS3_PARTS,
        "r6_parts": summary.R6_PARTS,
        "thresholds": summary.THRESHOLDS,
        "aggregations": ("stage_mean", "item_weighted"),
        "score_words": SCORE_WORDS,
        "flags": summary.FLAGS,
        "evidence_classes": summary.EVIDENCE_CLASSES,
        "directions": summary.DIRECTIONS,
        "figure": {name: Markup(figures.inline(svgs[name], name, alt)) for name, alt in _alts(data).items()},
    }


def checkpoint_texts(rubric: Path | None) -> dict[str, str]:
    """Checkpoint id → what it asks. Empty without a rubric.

    Raises:
        InputError: the rubric cannot be read.
    """
    if rubric is None:
        return {}
    from acpbench.rubric.catalogue import load_rubric

    return {entry.id: " ".join(entry.text.split()) for entry in load_rubric(rubric).checkpoints}


def _remove_old_pages(folder: Path, current: set[str]) -> None:
    """Delete pages of trajectories that the study no longer has; any other file is left alone."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (
            path.name not in current
            and _PAGE.fullmatch(path.name)
            and path.name.count("__") >= 2
            and not path.is_dir()
        ):
            path.unlink()


def _scoring_page(environment: Any, study: Any, output: Path) -> bool:
    """Write ``scoring.html``, the scoring rules as a page; ``False`` when the text is not here."""
    try:
        text = SCORING_DOCUMENT.read_text(encoding="utf-8")
    except OSError:
        (output / "scoring.html").unlink(missing_ok=True)
        return False
    body = to_html(text, top=1, anchors=True)
    write_text(
        output / "scoring.html", environment.get_template("scoring.html").render(study=study, body=body)
    )
    return True


def write_report(results: Path, study_file: Path, output: Path, rubric: Path | None = None) -> Path:
    """Read ``results`` for the study in ``study_file`` and write the report under ``output``.

    Args:
        results: results folder with the trajectories, reference results and cohorts.
        study_file: JSON with the grid (see :func:`acpbench.report.collect.load_study`).
        output: folder for ``index.html``, ``scoring.html``, ``tables/``, ``figures/`` and ``trajectories/``.
        rubric: the checkpoint definitions, whose text is shown beside each item; by default the file that
            the study names, if it is there.

    Returns:
        Path of ``index.html``, which is written last.

    Raises:
        InputError: the study file, the rubric or the results folder cannot be used. Missing results are no
            error.
    """
    output = Path(output)
    study = load_study(Path(study_file))
    if rubric is None and study.rubric and Path(study.rubric).is_file():
        rubric = Path(study.rubric)
    texts = checkpoint_texts(rubric)
    data = collect(Path(results), study)
    tables.write_tables(data, output / "tables")
    svgs = figures.write_figures(data, output / "figures")
    environment = _environment()
    environment.globals["scoring"] = _scoring_page(environment, study, output)
    page = environment.get_template("trajectory.html")
    for entry in track(data.trajectories, label="writing pages"):
        text = page.render(study=study, **page_context(entry, study, data.results, texts))
        write_text(output / "trajectories" / entry.page, text)
    _remove_old_pages(output / "trajectories", {entry.page for entry in data.trajectories})
    index = output / "index.html"
    write_text(index, environment.get_template("index.html").render(**index_context(data, svgs)))
    return index
