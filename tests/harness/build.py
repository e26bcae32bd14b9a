"""A small evaluator's side of a study, without a slide: tables, features, tiles and quality records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from acpbench.core.files import write_csv, write_json
from acpbench.features.store import FeatureBag, write_features
from acpbench.harness.collect import RunSettings
from acpbench.harness.context import RunContext, TilerSettings
from acpbench.harness.registry import call_tool
from acpbench.harness.scripted import ScriptedAgent
from acpbench.harness.workspace import build_workspace
from acpbench.slides.coords import TileSet, write_coords
from acpbench.tasks.catalogue import load_task

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "tasks" / "demo"
SPLITS = ["train", "train", "train", "validation", "test", "test"]
"""Split of the patients in turn; the class changes every six patients, so that each split has both."""
CLASSES = {
    "demo_pleomorphism": ["low", "high"],
    "demo_gland_grade": ["well", "moderate", "poor"],
    "demo_survival": [],
}
N_TILES, N_FEATURES = 6, 6


def patients(task_id: str) -> list[dict[str, Any]]:
    """Rows of a label table: one slide a patient, both classes (or events and censorings) in each split."""
    classes = CLASSES[task_id]
    rows = []
    for index in range(6 * max(len(classes), 3)):
        split, turn = SPLITS[index % 6], index // 6
        label = classes[turn % len(classes)] if classes else ""
        rows.append(
            {
                "slide_id": f"S{index:02d}",
                "patient_id": f"P{index:02d}",
                "fold": {"test": 0, "validation": 1, "train": 2}[split],
                "split": split,
                "label": label,
                # Times are told apart by their third decimal, so that a leaked one is found in any file.
                "time": "" if classes else f"{10 + 3 * turn + index % 6}.{137 + index}",
                "event": "" if classes else int((index + turn) % 3 != 0),
            }
        )
    return rows


class Side:
    """The evaluator's side under ``root``: everything a run's context points at."""

    def __init__(self, root: Path, task_id: str = "demo_pleomorphism") -> None:
        self.root, self.task_id = root, task_id
        self.task_file = DEMO / f"{task_id}.yaml"
        self.task = load_task(self.task_file)
        self.rows = patients(task_id)
        self.labels = root / "evaluator" / "labels.csv"
        self.slides_csv = root / "evaluator" / "slides.csv"
        self.exclusions_csv = root / "evaluator" / "exclusions.csv"
        self.slides_dir = root / "evaluator" / "slides"
        self.features_dir = root / "evaluator" / "features"
        self._tables()
        for index, row in enumerate(self.rows):
            self._slide(index, row)

    def _tables(self) -> None:
        write_csv(self.labels, list(self.rows[0]), self.rows)
        slides = [
            {
                "slide_id": row["slide_id"],
                "patient_id": row["patient_id"],
                "path": f"{row['slide_id']}.svs",
                "mpp": 0.5,
                "width_px": 1024,
                "height_px": 1024,
                "n_tiles": N_TILES,
            }
            for row in self.rows
        ]
        write_csv(self.slides_csv, list(slides[0]), slides)
        write_csv(
            self.exclusions_csv,
            ["slide_id", "patient_id", "stage", "reason", "detail"],
            [{"slide_id": "S99", "patient_id": "P99", "stage": "inspect", "reason": "unreadable"}],
        )

    def _slide(self, index: int, row: dict[str, Any]) -> None:
        from PIL import Image

        slide_id = row["slide_id"]
        folder = self.slides_dir / slide_id
        coords = np.array([[224 * (tile % 3), 224 * (tile // 3)] for tile in range(N_TILES)], dtype=np.int64)
        write_json(
            folder / "quality.json",
            {"slide_id": slide_id, "status": "ok", "reason": None, "width_px": 1024, "height_px": 1024,
             "classes": {"tissue": {"fraction": 0.5, "of": "slide"}}},
        )  # fmt: skip
        Image.new("RGB", (64, 64), (230, 200, 220)).save(folder / "thumbnail.jpg")
        write_coords(
            folder / "coords.h5",
            TileSet(slide_id, "0" * 64, "ok", "", "", coords, np.ones(N_TILES), 0.5, 224, None, 0.5, 0.5),
        )
        rng = np.random.default_rng(index)
        features = rng.normal(size=(N_TILES, N_FEATURES)).astype(np.float32)
        features[:, 0] += 3.0 * (index // 6)
        attributes = {"slide_id": slide_id, "status": "ok", "encoder": "color_stats", "cache_key": "k",
                      "tile_size_level0": 224.0}  # fmt: skip
        write_features(
            self.features_dir / "color_stats" / f"{slide_id}.h5", FeatureBag(features, coords, attributes)
        )

    def draw_slide(self, slide_id: str, rgb: np.ndarray) -> None:
        """The file of a slide: a plain picture of 0.5 um/px, as the cohort table declares it."""
        from PIL import Image

        path = self.root / "evaluator" / "files" / f"{slide_id}.svs"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rgb).save(path, format="PNG")

    def evaluator_fields(self, **changes: Any) -> dict[str, Any]:
        """Fields of ``EvaluatorSide``."""
        return {
            "task_file": self.task_file,
            "labels": self.labels,
            "slides_csv": self.slides_csv,
            "exclusions_csv": self.exclusions_csv,
            "slides_base": self.root / "evaluator" / "files",
            "slides_dir": self.slides_dir,
            "features_dir": self.features_dir,
            "store_dir": self.root / "evaluator" / "store",
            "encoders_config": REPOSITORY / "config" / "encoders.yaml",
            "tiler": TilerSettings(spacing_um=0.5, tile_size_px=224, min_tissue=0.5),
            "label_column": "label",
            "seed": 3,
        } | changes

    def workspace(
        self, name: str = "run", label_access: str = "heldout", skills: bool = False, **more: Any
    ) -> Path:
        """A fresh workspace under ``root/name``."""
        target = self.root / name / "workspace"
        build_workspace(
            target,
            task=self.task,
            labels_csv=self.labels,
            slides_csv=self.slides_csv,
            skills=REPOSITORY / "skills" if skills else None,
            label_access=label_access,  # type: ignore[arg-type]
            test_evaluations=1,
            **more,
        )
        return target

    def context(self, name: str = "run", **changes: Any) -> RunContext:
        """The context of a run whose workspace is made here."""
        access = changes.get("label_access", "heldout")
        workspace = self.workspace(name, access)
        return RunContext(
            trajectory_id=f"group/{self.task_id}/1",
            workspace=workspace,
            tool_log=workspace.parent / "tools.jsonl",
            receipts=workspace.parent / "receipts.jsonl",
            split_id="sha256:0000",
            **self.evaluator_fields(**changes),
        )

    def settings(self, behaviour: str, **changes: Any) -> RunSettings:
        """Settings of a collected run."""
        harness = {"label": behaviour, "harness": "scripted", "policy": behaviour}
        own = {"group": f"scripted_{behaviour}", "replicate": "1", "harness": harness,
               "encoder": "color_stats", "skills": None}  # fmt: skip
        return RunSettings(**self.evaluator_fields() | own | changes)


class DirectAgent(ScriptedAgent):
    """The scripted agent with its tools called in this process."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.workspace)
        self.context = context
        self.stream: list[dict[str, Any]] = []

    def emit(self, kind: str, **fields: Any) -> None:
        self.stream.append({"type": kind, **fields})

    def _ask(self, call: dict[str, Any]) -> dict[str, Any]:
        return call_tool(
            self.context, call["tool"], call["args"], step_id=call["step_id"], round_id=call["round_id"]
        )

    def die(self) -> None:
        raise SystemExit(137)


def write_predictions(context: RunContext, path: str, probability: dict[str, float], side: Side) -> None:
    """A predictions table of the binary demo task with the given probability of ``high`` by patient."""
    split_of = {row["patient_id"]: row["split"] for row in side.rows}
    rows = [
        {"case_id": patient, "split": split_of.get(patient, "test"), "y_true": "",
         "y_pred": "high" if value >= 0.5 else "low", "prob_low": 1 - value, "prob_high": value}
        for patient, value in probability.items()
    ]  # fmt: skip
    write_csv(context.path(path), ["case_id", "split", "y_true", "y_pred", "prob_low", "prob_high"], rows)
