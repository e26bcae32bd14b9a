"""Model tools: train an attention-based model on the run's patients, predict, draw what it looked at."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acpbench.core.errors import InputError
from acpbench.core.files import (
    read_bytes,
    read_csv,
    sha256_bytes,
    write_bytes,
    write_csv,
)
from acpbench.harness.context import RunContext
from acpbench.harness.tool_args import PredictMil, RenderAttention, TrainMil
from acpbench.harness.tool_base import ToolOutcome
from acpbench.harness.tool_results import (
    Dropped,
    PredictMilResult,
    RenderAttentionResult,
    TrainMilResult,
)
from acpbench.mil.cells import parse_number

if TYPE_CHECKING:
    from acpbench.mil.bags import PatientBag

INNER_FOLDS = 4
MAX_MODEL_BYTES = 256 * 1024 * 1024
MAX_NAMED = 50
"""Dropped slides and patients that an answer names."""


def _index(context: RunContext, path: str) -> dict[str, dict[str, str]]:
    """``features_index.csv`` by slide. Raises :class:`InputError` for another table or an empty one."""
    rows = read_csv(context.read_path(path))
    if not rows or not {"slide_id", "path", "encoder"} <= rows[0].keys():
        raise InputError("expected a features_index.csv with slide_id, encoder and path", file=path)
    return {row["slide_id"]: row for row in rows}


def _bags(
    context: RunContext, index: dict[str, dict[str, str]]
) -> tuple[list[PatientBag], list[dict[str, str]], dict[str, str]]:
    """Patient bags of the indexed slides, what has none and why, and the split of each patient."""
    from acpbench.mil.bags import load_bags

    def feature_file(slide_id: str) -> Path:
        return context.stored(index[slide_id]["path"])

    rows = context.slide_rows()
    usable = [row for row in rows if row["slide_id"] in index]
    if not usable:
        raise InputError("the features index lists no usable slide of this run", field="features_index")
    bags, dropped = load_bags(usable, context.task.output_type, feature_file)
    dropped += [
        {"patient_id": row["patient_id"], "slide_id": row["slide_id"], "reason": "not in the features index"}
        for row in rows
        if row["slide_id"] not in index
    ]
    return bags, dropped, {row["patient_id"]: row["split"] for row in rows}


def _grid_of(row: dict[str, str], name: str, otherwise: float) -> float | int:
    """Spacing or tile size of indexed features; the study's where an index does not say."""
    number = parse_number(row.get(name))
    value = otherwise if number is None else number
    return int(value) if name == "tile_size_px" else value


def _yaml(value: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def train_mil(context: RunContext, args: TrainMil) -> ToolOutcome:
    """Train on training patients, stop early on an inner quarter of them, predict validation and test.

    Test rows are written without labels unless the run's label access is open.
    """
    from acpbench.mil.splits import assign_folds
    from acpbench.mil.train import MilSettings, predict, save_model, train_fold

    task = context.task
    index = _index(context, args.features_index)
    bags, dropped, split_of = _bags(context, index)
    training = [bag for bag in bags if split_of[bag.patient_id] == "train"]
    strata = [
        {
            "patient_id": bag.patient_id,
            "stratum": str(bag.event if task.output_type == "survival" else bag.label),
        }
        for bag in training
    ]
    inner = assign_folds(strata, INNER_FOLDS, args.seed)
    settings = MilSettings(**args.model_dump(exclude={"features_index", "output_dir"}))
    fitted = train_fold(
        [bag for bag in training if inner[bag.patient_id] != 0],
        [bag for bag in training if inner[bag.patient_id] == 0],
        task.output_type,
        task.classes,
        settings,
    )

    folder = args.output_dir
    round_id = 0 if folder.startswith("outputs") else int(folder.rsplit("_", 1)[1])
    some = next(iter(index.values()))
    config = {
        "task_id": task.task_id,
        "label_column": context.label_column,
        "split_id": context.split_id,
        "encoder": some["encoder"],
        "spacing_um": _grid_of(some, "spacing_um", context.tiler.spacing_um),
        "tile_size_px": _grid_of(some, "tile_size_px", context.tiler.tile_size_px),
        "features_index": args.features_index,
        "mil": settings.model_dump(exclude={"seed"}),
        "seed": settings.seed,
        "round_id": round_id,
    }
    config_bytes = _yaml(config).encode()
    write_bytes(context.write_path(f"{folder}/config.yaml"), config_bytes)
    write_bytes(context.write_path(f"{folder}/model.pt"), save_model(fitted))
    write_csv(
        context.write_path(f"{folder}/splits.csv"),
        ["patient_id", "split"],
        [{"patient_id": name, "split": split} for name, split in sorted(split_of.items())],
    )
    write_csv(
        context.write_path(f"{folder}/history.csv"), ["epoch", "train_loss", "val_loss"], fitted.history
    )
    held_out = [bag for bag in bags if split_of[bag.patient_id] in ("validation", "test")]
    predicted = _public_rows(context, predict(fitted, held_out).rows, split_of)
    write_csv(
        context.write_path(f"{folder}/predictions.csv"), list(predicted[0]) if predicted else [], predicted
    )
    outputs = [
        f"{folder}/{name}"
        for name in ("config.yaml", "model.pt", "splits.csv", "history.csv", "predictions.csv")
    ]
    return ToolOutcome(
        outputs,
        TrainMilResult(
            config_sha256=sha256_bytes(config_bytes),
            n_train=len(training),
            n_inner_validation=sum(fold == 0 for fold in inner.values()),
            n_validation=sum(split_of[bag.patient_id] == "validation" for bag in held_out),
            n_test=sum(split_of[bag.patient_id] == "test" for bag in held_out),
            best_epoch=fitted.best_epoch,
            n_epochs=len(fitted.history),
            n_dropped=len(dropped),
            dropped=[Dropped(**row) for row in dropped[:MAX_NAMED]],
        ),
    )


def predict_mil(context: RunContext, args: PredictMil) -> ToolOutcome:
    """Predict the patients of the named splits with a model that ``train_mil`` saved.

    Raises:
        InputError: not a model file, a model of another task, or features of another width.
    """
    from acpbench.mil.train import load_model, predict

    task = context.task
    index = _index(context, args.features_index)
    fitted = load_model(read_bytes(context.read_path(args.model), max_bytes=MAX_MODEL_BYTES))
    if (fitted.output_type, list(fitted.classes)) != (task.output_type, list(task.classes)):
        raise InputError(
            f"the model predicts {fitted.output_type} {', '.join(fitted.classes)}; the task is "
            f"{task.output_type} {', '.join(task.classes)}",
            file=args.model,
        )
    bags, dropped, split_of = _bags(context, index)
    wanted = [bag for bag in bags if split_of[bag.patient_id] in args.splits]
    if not wanted:
        raise InputError(f"no patient of {', '.join(args.splits)} has features", field="splits")
    rows = _public_rows(context, predict(fitted, wanted).rows, split_of)
    write_csv(context.write_path(args.output), list(rows[0]), rows)
    lacking = [row for row in dropped if split_of[row["patient_id"]] in args.splits]
    result = PredictMilResult(
        n_patients=len(rows),
        n_by_split=dict(Counter(row["split"] for row in rows)),
        encoder=next(iter(index.values()))["encoder"],
        n_dropped=len(lacking),
        dropped=[Dropped(**row) for row in lacking[:MAX_NAMED]],
    )
    return ToolOutcome([args.output], result)


def _public_rows(
    context: RunContext, rows: list[dict[str, Any]], split_of: dict[str, str]
) -> list[dict[str, Any]]:
    """Prediction rows as the agent may see them: ``case_id``, ``split``, no truth of a test patient."""
    truth = {"y_true", "time", "event"}
    public = []
    for row in rows:
        split = split_of[row["patient_id"]]
        hidden = split == "test" and context.label_access == "heldout"
        public.append(
            {"case_id": row["patient_id"], "split": split}
            | {
                key: None if hidden and key in truth else value
                for key, value in row.items()
                if key != "patient_id"
            }
        )
    return public


def render_attention(context: RunContext, args: RenderAttention) -> ToolOutcome:
    """Attention of a round's model over one slide's thumbnail, as a JPEG."""
    from acpbench.mil.bags import load_bags
    from acpbench.mil.overlay import attention_picture
    from acpbench.mil.train import load_model, predict

    index = _index(context, args.features_index)
    if args.slide_id not in index:
        raise InputError(f"slide {args.slide_id!r} is not in {args.features_index}", field="slide_id")
    fitted = load_model(read_bytes(context.read_path(args.model), max_bytes=MAX_MODEL_BYTES))
    rows = [row for row in context.slide_rows() if row["slide_id"] == args.slide_id]
    feature_file = context.stored(index[args.slide_id]["path"])
    bags, _ = load_bags(rows, context.task.output_type, lambda _: feature_file)
    if not bags:
        raise InputError(f"slide {args.slide_id!r} has no tiles", field="slide_id")
    attention = predict(fitted, bags).attention[0]
    output = f"{args.output_dir}/attention/{args.slide_id}.jpg"
    attention_picture(
        context.slides_dir / args.slide_id / "thumbnail.jpg",
        context.slides_dir / args.slide_id / "quality.json",
        feature_file,
        attention,
        context.write_path(output),
    )
    return ToolOutcome([output], RenderAttentionResult(slide_id=args.slide_id, n_tiles=len(attention)))
