"""Killed training goes on to the same bytes; finished work is not repeated, half of it is not trusted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from acpbench.core.errors import InputError
from acpbench.core.files import read_json, write_csv
from acpbench.features.store import FeatureBag, read_features, write_features
from acpbench.mil import crossval
from acpbench.mil.bags import PatientBag
from acpbench.mil.crossval import FOLD_FILES, finished_fold, train_reference_fold
from acpbench.mil.label_table import write_label_table
from acpbench.mil.pooling import pool_reference
from acpbench.mil.train import MilSettings, save_model, train_fold
from tests.mil.test_crossval import BINDING, FAST, cohort, task

SETTINGS = MilSettings(hidden_dim=16, attention_dim=8, max_epochs=12, patience=12, lr=5e-3, device="cpu")
ALL_FILES = [*FOLD_FILES, "fold.json"]


class Killed(Exception):
    """Stands for the end of the process."""


def small_bags(kind: str) -> list[PatientBag]:
    generator = np.random.default_rng(0)
    return [
        PatientBag(
            f"p{i:02d}",
            generator.normal(size=(600, 8)).astype(np.float32) + i % 2,
            label="ab"[i % 2],
            time=float(i + 1),
            event=i % 3 != 0,
        )
        for i in range(12)
    ]


@pytest.mark.parametrize("kind", ["binary", "survival"])
@pytest.mark.parametrize("at", [1, 5, 11])
def test_training_goes_on_from_its_checkpoint_to_the_same_bytes(tmp_path, monkeypatch, kind, at):
    """Sampled tiles, dropout and optimiser state all take part in what comes after the checkpoint."""
    from acpbench.mil.fitting import Run

    bags, classes = small_bags(kind), ["a", "b"] if kind == "binary" else []
    whole = save_model(train_fold(bags[:8], bags[8:], kind, classes, SETTINGS))
    kept = {"checkpoint": tmp_path / "c.pt", "checkpoint_every_s": 0}
    epochs = []
    original = Run._epoch

    def spy(self, *part):
        if len(epochs) == at:
            raise Killed
        epochs.append(len(self.history) + 1)
        return original(self, *part)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_epoch", spy)
        with pytest.raises(Killed):
            train_fold(bags[:8], bags[8:], kind, classes, SETTINGS, **kept)
        assert (tmp_path / "c.pt").is_file()
        at = 100
        assert save_model(train_fold(bags[:8], bags[8:], kind, classes, SETTINGS, **kept)) == whole
    assert epochs == list(range(1, 13))  # none twice
    assert not (tmp_path / "c.pt").exists()


@pytest.mark.parametrize("damage", ["other settings", "cut", "noise", "empty"])
def test_a_checkpoint_of_another_run_or_a_damaged_one_is_left_aside(tmp_path, damage):
    bags = small_bags("binary")
    whole = save_model(train_fold(bags[:8], bags[8:], "binary", ["a", "b"], SETTINGS))
    place = tmp_path / "c.pt"
    other = SETTINGS.model_copy(update={"lr": 1e-2})

    def stop_before_removal(self):
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acpbench.mil.checkpoint.Checkpoint.remove", stop_before_removal)
        settings = other if damage == "other settings" else SETTINGS
        train_fold(bags[:8], bags[8:], "binary", ["a", "b"], settings, checkpoint=place, checkpoint_every_s=0)
    data = place.read_bytes()
    place.write_bytes(
        {"cut": data[:-100], "noise": os.urandom(3000), "empty": b"", "other settings": data}[damage]
    )
    fitted = train_fold(bags[:8], bags[8:], "binary", ["a", "b"], SETTINGS, checkpoint=place)
    assert save_model(fitted) == whole and not place.exists()


@pytest.mark.parametrize("what", ["validation", "swapped", "one tile"])
def test_a_checkpoint_of_other_features_is_left_aside(tmp_path, monkeypatch, what):
    """Of the same patients, sizes, means and scales: the features themselves are what counts."""
    from acpbench.mil.fitting import Run

    bags = small_bags("binary")
    kept = {"checkpoint": tmp_path / "c.pt", "checkpoint_every_s": 0}
    original = Run._epoch

    def stop(self, *part):
        if len(self.history) == 5:
            raise Killed
        return original(self, *part)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_epoch", stop)
        with pytest.raises(Killed):
            train_fold(bags[:8], bags[8:], "binary", ["a", "b"], SETTINGS, **kept)
    changed = list(bags)
    if what == "swapped":
        changed[0] = replace(bags[0], features=bags[2].features)
        changed[2] = replace(bags[2], features=bags[0].features)
    else:
        features = bags[9].features.copy()
        features[:1] = features[:1] + 1 if what == "one tile" else features[1:2]
        changed[9] = replace(bags[9], features=-features if what == "validation" else features)
    whole = save_model(train_fold(changed[:8], changed[8:], "binary", ["a", "b"], SETTINGS))
    assert save_model(train_fold(changed[:8], changed[8:], "binary", ["a", "b"], SETTINGS, **kept)) == whole


def test_a_fold_of_features_that_changed_after_a_kill_begins_anew(tmp_path, monkeypatch):
    from acpbench.mil import train

    prepared(tmp_path)
    seen = []
    original = train.Checkpoint

    def watched(path, key, every_s):
        seen.append(key)
        return original(path, key, every_s)

    monkeypatch.setattr(train, "Checkpoint", watched)
    for _ in range(2):
        one_fold(tmp_path)
        path = sorted((tmp_path / "features").glob("*.h5"))[0]
        held = read_features(path)
        write_features(path, FeatureBag(-held.features, held.coords, held.attrs))
    assert len(set(seen)) == 2


def test_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"header": Evil()}, tmp_path / "c.pt")
    bags = small_bags("binary")
    train_fold(bags[:8], bags[8:], "binary", ["a", "b"], SETTINGS, checkpoint=tmp_path / "c.pt")
    assert not (tmp_path / "ran").exists()


def one_fold(folder: Path, out: str = "x", settings: MilSettings = FAST) -> dict:
    return train_reference_fold(
        folder / "labels.csv", folder / "features", task(), "e", 0, settings, folder / out
    )


def prepared(folder: Path) -> Path:
    cohort(folder)
    write_label_table(folder / "slides.csv", BINDING, task(), 3, 1, folder / "labels.csv")
    return folder


def test_a_finished_fold_is_not_trained_again(tmp_path, monkeypatch):
    first = one_fold(prepared(tmp_path))
    assert finished_fold(tmp_path / "x") == first

    def never(*_, **__):
        raise AssertionError("trained again")

    with monkeypatch.context() as patch:
        patch.setattr(crossval, "train_fold", never)
        assert one_fold(tmp_path) == first
        with pytest.raises(AssertionError, match="trained again"):  # other settings are another fold
            one_fold(tmp_path, settings=FAST.model_copy(update={"lr": 0.1}))
    assert finished_fold(tmp_path / "x") is None  # taken back before the other training began


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_half_written_fold_is_not_trusted_and_is_made_again_to_the_same_bytes(tmp_path, name, damage):
    one_fold(prepared(tmp_path))
    whole = {file: (tmp_path / "x" / file).read_bytes() for file in ALL_FILES}
    path = tmp_path / "x" / name
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif name == "fold.json":
        path.write_text(path.read_text().replace('"model.pt": "', '"model.pt": "0'))
    else:
        path.write_bytes(path.read_bytes() + b"\n")
    assert finished_fold(tmp_path / "x") is None
    with pytest.raises(InputError, match="not a finished fold"):
        pool_reference([tmp_path / "x"] * 3, tmp_path / "labels.csv", task(), "e", tmp_path / "e")
    one_fold(tmp_path)
    assert {file: (tmp_path / "x" / file).read_bytes() for file in ALL_FILES} == whole


CHILD = """
import sys, time
from pathlib import Path
from tests.mil.test_crossval import task
from acpbench.mil.crossval import train_reference_fold
from acpbench.mil.train import MilSettings
folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
settings = MilSettings(
    hidden_dim=32, attention_dim=8, max_epochs=epochs, patience=epochs, lr=1e-3, device="cpu"
)
print("ready", flush=True)
train_reference_fold(
    folder / "labels.csv", folder / "features", task(), "e", 0, settings, folder / sys.argv[3],
    checkpoint_every_s=0,
)
"""


def start(folder: Path, out: str, repository: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), "400", out],
        cwd=repository,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_fold_killed_at_any_moment_ends_with_the_bytes_of_one_left_alone(tmp_path, repository):
    prepared(tmp_path)
    process = start(tmp_path, "whole", repository)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    began = time.monotonic()
    assert process.wait(300) == 0
    lasts = time.monotonic() - began
    ends, resumed = [], 0
    for share in (0.1, 0.25, 0.3, 0.3, 0.2):
        process = start(tmp_path, "killed", repository)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        try:
            process.wait(lasts * share)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        ends.append(process.wait())
        if ends[-1]:
            assert finished_fold(tmp_path / "killed") is None
            resumed += (tmp_path / "killed" / "checkpoint.pt").exists()
    assert ends.count(-signal.SIGKILL) >= 3 and resumed >= 1, (ends, resumed)
    process = start(tmp_path, "killed", repository)
    assert process.wait(300) == 0
    for name in ALL_FILES:
        left, right = (tmp_path / place / name for place in ("whole", "killed"))
        assert left.read_bytes() == right.read_bytes(), name
    assert sorted(path.name for path in (tmp_path / "killed").iterdir() if ".tmp" not in path.name) == sorted(
        ALL_FILES
    )


def test_a_fold_of_other_folds_than_the_label_tables_is_refused_at_scoring(tmp_path):
    prepared(tmp_path)
    folds = [tmp_path / str(k) for k in range(3)]
    for k, out in enumerate(folds):
        train_reference_fold(tmp_path / "labels.csv", tmp_path / "features", task(), "e", k, FAST, out)
    write_label_table(tmp_path / "slides.csv", BINDING, task(), 3, 2, tmp_path / "labels.csv")
    with pytest.raises(InputError, match="other folds than the label table's"):
        pool_reference(folds, tmp_path / "labels.csv", task(), "e", tmp_path / "e")


def test_a_patient_who_was_trained_on_and_tested_is_refused_at_scoring(tmp_path):
    prepared(tmp_path)
    folds = [tmp_path / str(k) for k in range(3)]
    for k, out in enumerate(folds):
        train_reference_fold(tmp_path / "labels.csv", tmp_path / "features", task(), "e", k, FAST, out)
    summary = read_json(folds[1] / "fold.json")
    leaked = summary["patients"]["test"][0]
    summary["patients"]["train"].append(leaked)
    from acpbench.core.files import write_json

    write_json(folds[1] / "fold.json", summary)
    with pytest.raises(InputError, match=f"'{leaked}' was trained on and tested"):
        pool_reference(folds, tmp_path / "labels.csv", task(), "e", tmp_path / "e")


def test_a_site_on_both_sides_is_refused_at_training(tmp_path):
    from acpbench.core.files import read_csv

    prepared(tmp_path)
    rows = [row | {"site": f"S{row['fold']}"} for row in read_csv(tmp_path / "labels.csv")]
    write_csv(tmp_path / "labels.csv", list(rows[0]), rows)
    one_fold(tmp_path)
    rows = [row | {"site": "S0"} for row in rows]
    write_csv(tmp_path / "labels.csv", list(rows[0]), rows)
    with pytest.raises(InputError, match="site 'S0' is in fold"):
        one_fold(tmp_path)
