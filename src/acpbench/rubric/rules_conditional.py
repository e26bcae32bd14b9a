"""Deterministic rules of some tasks only: calibration, classes, order, survival, expression, entities."""

from __future__ import annotations

from acpbench.mil.cells import is_missing
from acpbench.rubric.case import Case, Outcome, Rejected, decide, failed, passed, rule
from acpbench.rubric.evidence import ROUND_ZERO
from acpbench.rubric.formats import Table, mapping, number, whole, words
from acpbench.rubric.recompute import claimed, compare, split_name, squash

PREDICTIONS = f"{ROUND_ZERO}/predictions.csv"
METRICS = f"{ROUND_ZERO}/metrics.json"
SPLITS = f"{ROUND_ZERO}/splits.csv"
ENTITY_COLUMNS = ("entity", "tumor_type", "tumour_type", "cancer_type", "tissue_type", "project")


@rule("D3.dc1")
def calibration(case: Case) -> Outcome:
    """Brier score and ECE are given, and the Brier score recomputes."""
    document = case.need_metrics()
    lacking = [name for name in ("brier", "ECE") if claimed(document, name) is None]
    return failed(f"no value for {', '.join(lacking)}") if lacking else compare(case, "brier")


@rule("D3.dc2")
def per_class_metrics(case: Case) -> Outcome:
    """Recall or F1 for every class."""
    per_class = mapping(case.need_metrics().get("per_class"))
    case.cite(f"{METRICS}#/per_class")
    given = set()
    for label, values in per_class.items():
        keys = {squash(key): value for key, value in mapping(values).items()}
        found = [number(keys.get(key)) for key in ("recall", "sensitivity", "f1", "f1score")]
        if any(value is not None and 0 <= value <= 1 for value in found):
            given.add(case.evidence.canonical(label))
    if not case.evidence.classes:
        raise Rejected("the task has no class")
    lacking = [label for label in case.evidence.classes if label not in given]
    return decide(
        not lacking,
        f"recall or F1 for {len(case.evidence.classes)} classes",
        f"no recall or F1 for {', '.join(lacking)[:160]}",
    )


@rule("D3.dc3")
def kappa_recomputes(case: Case) -> Outcome:
    """Quadratic weighted kappa recomputes."""
    return compare(case, "quadratic_weighted_kappa")


@rule("D3.dc4")
def c_index_recomputes(case: Case) -> Outcome:
    """The concordance index recomputes from reference time and event and the predicted risk."""
    return compare(case, "c_index")


@rule("D3.dc5")
def spearman_recomputes(case: Case) -> Outcome:
    """Spearman's rho recomputes."""
    return compare(case, "spearman_rho")


@rule("A5.dc1")
def expression_label_table(case: Case) -> Outcome:
    """The expression-derived label table keeps its source and transform."""
    path = f"{ROUND_ZERO}/expression_label.csv"
    table = case.need_table(path, ("source", "transform"))
    if not any(name in table.columns for name in ("patient_id", "case_id", "sample_id")):
        return failed(f"{path} has no patient id")
    blank = sum(is_missing(row["source"]) or is_missing(row["transform"]) for row in table.rows)
    return decide(
        not blank,
        f"{len(table.rows)} labels with source and transform",
        f"{blank} rows lack source or transform",
    )


def _entity_column(table: Table) -> str | None:
    return next((name for name in table.columns if name.lower() in ENTITY_COLUMNS), None)


@rule("A5.dc2")
def entity_column(case: Case) -> Outcome:
    """Predictions name the tumour type of each case."""
    table = case.need_table(PREDICTIONS)
    column = _entity_column(table)
    if column is None:
        return failed(f"{PREDICTIONS} has no entity column")
    blank = sum(is_missing(row[column]) for row in table.rows)
    return decide(not blank, f"column {column} is filled", f"{blank} rows have no {column}")


@rule("D3.dc6")
def per_entity_metrics(case: Case) -> Outcome:
    """Metrics per entity, each with its n, for every entity of the predictions."""
    document = case.need_metrics()
    block = next(
        (mapping(document[key]) for key in ("per_entity", "entities") if mapping(document.get(key))), {}
    )
    if len(block) < 2:
        return failed("metrics.json has no block of metrics per entity")
    for entity, values in block.items():
        fields = mapping(values)
        numbers = [number(value) for key, value in fields.items() if key != "n"]
        numbers += [number(value) for value in mapping(fields.get("metrics")).values()]
        if whole(fields.get("n")) is None or all(value is None for value in numbers):
            return failed(f"entity {str(entity)[:40]} has no n or no metric")
    table = case.need_table(PREDICTIONS)
    column = _entity_column(table)
    split = split_name(document.get("split"))
    present = {
        row[column] for row in table.rows if column and split_name(row.get("split")) == split and row[column]
    }
    lacking = sorted(present - {str(entity) for entity in block})
    return decide(
        not lacking, f"metrics for {len(block)} entities", f"no metrics for {', '.join(lacking)[:120]}"
    )


@rule("A6.dc1")
def entities_in_both_splits(case: Case) -> Outcome:
    """Every entity appears in train and in test."""
    table = case.need_table(SPLITS, ("split",))
    column = _entity_column(table)
    if column is None:
        return failed(f"{SPLITS} has no entity column")
    where: dict[str, set[str | None]] = {}
    for row in table.rows:
        if words(row[column]):
            where.setdefault(row[column], set()).add(split_name(row["split"]))
    lacking = sorted(entity for entity, splits in where.items() if not {"train", "test"} <= splits)
    if not where:
        return failed("no entity is named")
    return (
        failed(f"not in both train and test: {', '.join(lacking)[:120]}")
        if lacking
        else passed(f"{len(where)} entities are in train and test")
    )
