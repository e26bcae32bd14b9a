"""``acp-bench tasks`` and ``acp-bench schemas`` as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from acpbench.cli.main import cli
from acpbench.cli.schemas import SCHEMAS, differing, json_schema
from acpbench.core.files import read_yaml


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(autouse=True)
def in_checkout(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)


def test_list_json_is_a_list_of_tasks() -> None:
    tasks = json.loads(call("tasks", "list", "--format", "json").stdout)
    assert len(tasks) == 41
    first = next(task for task in tasks if task["task_id"] == "bladder_tp53")
    assert first["target"] == "TP53 mutation"
    assert first["classes"] == ["wildtype", "mutant"]
    assert first["metric_family"]["primary"] == "AUROC"
    assert first["n"]["patients"] == 373
    assert not any(task["demo"] for task in tasks)


def test_demo_tasks_are_listed_only_when_asked() -> None:
    tasks = json.loads(call("tasks", "list", "--demo", "--format", "json").stdout)
    assert [task["task_id"] for task in tasks if task["demo"]] == [
        *("demo_gland_grade", "demo_pleomorphism", "demo_survival")
    ]
    assert len(tasks) == 44


def test_list_csv_and_table() -> None:
    rows = list(csv.DictReader(io.StringIO(call("tasks", "list", "--format", "csv").stdout)))
    assert len(rows) == 41
    row = next(row for row in rows if row["task_id"] == "breast_aln_burden")
    assert row["label_values"] == "N0; N+(1-2); N+(>2)"
    assert row["primary_metric"] == "quadratic_weighted_kappa"
    unknown = next(row for row in rows if row["task_id"] == "lung_stk11")
    assert (unknown["n_slides"], unknown["n_patients"]) == ("", "")
    table = call("tasks", "list").stdout
    assert table.startswith("41 tasks")
    assert "pancancer_immune_subtype" in table and "macro_OvR_AUROC" in table


def test_requirements() -> None:
    table = json.loads(call("tasks", "requirements", "--format", "json").stdout)
    assert table["totals"] == {
        "clinical_framing": 200,
        "data_source_grounding": 166,
        "pipeline_design": 233,
        "target_modeling": 82,
        "evaluation_design": 102,
        "interpretation": 118,
        "iteration_readiness": 126,
        "all": 1027,
    }
    assert set(table["tasks"][0]) == {"task_id", "subnodes", "counts", "total"}
    rows = list(csv.DictReader(io.StringIO(call("tasks", "requirements", "--format", "csv").stdout)))
    assert rows[-1]["task_id"] == "all tasks" and rows[-1]["total"] == "1027"
    assert sum(int(row["total"]) for row in rows[:-1]) == 1027
    assert "1027" in call("tasks", "requirements").stdout


def test_horizon() -> None:
    table = json.loads(call("tasks", "horizon", "--format", "json").stdout)
    assert table["tiers"] == {"lower": 6, "middle": 20, "high": 9, "highest": 6}
    assert table["maximum_raw"] == 2455
    row = next(row for row in table["tasks"] if row["task_id"] == "bladder_tp53")
    assert (row["raw"], round(row["score"], 2), row["tier"]) == (1805, 7.35, "middle")
    assert len(list(csv.DictReader(io.StringIO(call("tasks", "horizon", "--format", "csv").stdout)))) == 41
    assert "pancancer_immune_subtype" in call("tasks", "horizon").stdout.splitlines()[2]


def test_show() -> None:
    shown = json.loads(call("tasks", "show", "bladder_tp53", "--format", "json").stdout)
    assert len(shown["requirements"]) == 26
    assert shown["long_horizon"]["raw"] == 1805
    assert shown["long_horizon"]["tier"] == "middle"
    assert "TP53 mutation" in call("tasks", "show", "tasks/bladder_tp53.yaml").stdout
    fields = {
        row["field"]: row["value"]
        for row in csv.DictReader(
            io.StringIO(call("tasks", "show", "demo_survival", "--format", "csv").stdout)
        )
    }
    assert fields["demo"] == "True" and fields["output_type"] == "survival"


def test_another_folder_of_tasks(repository: Path, tmp_path: Path) -> None:
    text = (repository / "tasks" / "bladder_tp53.yaml").read_text(encoding="utf-8")
    (tmp_path / "bladder_tp53.yaml").write_text(text, encoding="utf-8")
    tasks = json.loads(call("tasks", "list", "--tasks-dir", str(tmp_path), "--format", "json").stdout)
    assert [task["task_id"] for task in tasks] == ["bladder_tp53"]


def test_a_bad_file_is_one_line_and_exit_2(repository: Path, tmp_path: Path) -> None:
    text = (repository / "tasks" / "bladder_tp53.yaml").read_text(encoding="utf-8")
    path = tmp_path / "bladder_tp53.yaml"
    path.write_text(text.replace("multiclass: false", "multiclass: true"), encoding="utf-8")
    for arguments in (["show", str(path)], ["list", "--tasks-dir", str(tmp_path)]):
        done = subprocess.run(
            [sys.executable, "-m", "acpbench.cli.main", "tasks", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert done.stderr == (
            f"acp-bench: error: {path}: multiclass: expected true exactly for multiclass output (got True)\n"
        )


def test_listing_imports_nothing_heavy() -> None:
    """What keeps the listing under half a second: no scientific library, and rich only for tables."""
    code = (
        "import sys; from click.testing import CliRunner; from acpbench.cli.main import cli;"
        "r = CliRunner().invoke(cli, ['tasks', 'list', '--format', 'json']); assert r.exit_code == 0;"
        "print(sorted({'numpy','pandas','torch','sklearn','scipy','matplotlib','rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_committed_schemas_agree_with_the_models(repository: Path) -> None:
    assert differing(repository / "workflow" / "schemas") == []


def test_schemas_are_valid_and_accept_the_files(repository: Path) -> None:
    assert {"task", "rubric", "requirements"} <= set(SCHEMAS)
    for name in SCHEMAS:
        schema = json_schema(name)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        jsonschema.Draft202012Validator.check_schema(schema)
    task = jsonschema.Draft202012Validator(json_schema("task"))
    for path in [*(repository / "tasks").glob("*_*.yaml"), *(repository / "tasks" / "demo").glob("*.yaml")]:
        task.validate(read_yaml(path))
    assert not task.is_valid({**read_yaml(repository / "tasks" / "bladder_tp53.yaml"), "colour": "blue"})
    for name in ("rubric", "requirements"):
        content = read_yaml(repository / "tasks" / f"{name}.yaml")
        jsonschema.Draft202012Validator(json_schema(name)).validate(content)


def test_schemas_write_and_check(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    call("schemas", "--output", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.schema.json" for name in SCHEMAS)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    call("schemas", "--output", str(folder))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    call("schemas", "--check", "--output", str(folder))

    (folder / "task.schema.json").write_text("{}\n", encoding="utf-8")
    (folder / "rubric.schema.json").unlink()
    (folder / "old.schema.json").write_text("{}\n", encoding="utf-8")
    assert differing(folder) == ["old", "rubric", "task"]
    done = subprocess.run(
        [sys.executable, "-m", "acpbench.cli.main", "schemas", "--check", "--output", str(folder)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    for name in ("old", "rubric", "task"):
        assert f"{name}.schema.json: differs" in done.stderr
    assert (folder / "task.schema.json").read_text(encoding="utf-8") == "{}\n"
