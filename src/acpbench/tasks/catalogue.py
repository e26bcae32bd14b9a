"""Find and read task files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from acpbench.core.errors import InputError, describe_validation
from acpbench.core.files import read_yaml
from acpbench.core.ids import check_id
from acpbench.tasks.models import TASK_SCHEMA, Task

Model = TypeVar("Model", bound=BaseModel)


def default_tasks_dir() -> Path:
    """The ``tasks`` folder of the working directory, else the one of the checkout this package lies in.

    Raises:
        InputError: neither exists.
    """
    for folder in (Path("tasks"), Path(__file__).resolve().parents[3] / "tasks"):
        if folder.is_dir():
            return folder
    raise InputError("there is no folder of tasks here; name one with --tasks-dir", file="tasks")


def read_versioned(path: str | Path, model: type[Model], schema: str, content: Any = None) -> Model:
    """Read one YAML or JSON file into a model, its ``schema`` line checked and taken off.

    Args:
        path: the file.
        model: the pydantic model of the file without its ``schema`` line.
        schema: the expected value of that line; a file without the line is taken as this version.
        content: the file's content when it was read already.

    Raises:
        InputError: the file is unreadable, of another version, or breaks the model; names file and field.
    """
    content = read_yaml(path) if content is None else content
    if not isinstance(content, Mapping):
        raise InputError(f"expected a mapping of fields at the top ({schema})", file=path)
    fields = dict(content)
    found = fields.pop("schema", schema)
    if found != schema:
        raise InputError(f"expected {schema!r} (got {str(found)[:60]!r})", file=path, field="schema")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise describe_validation(error, path) from None


def load_task(path: str | Path) -> Task:
    """Read one task file (YAML).

    Raises:
        InputError: names the file, the field and what was expected.
    """
    return read_versioned(path, Task, TASK_SCHEMA)


def load_tasks(directory: str | Path) -> list[Task]:
    """Read every task of a folder (not of its subfolders), sorted by id.

    Other versioned files there (``rubric.yaml``, ``requirements.yaml``) are passed over; a file that is
    neither a task nor carries another ``schema`` line is an error, so that no broken task goes missing.

    Raises:
        InputError: the folder is missing or holds no task; a file is broken, or not named after its task.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError("folder of tasks does not exist", file=directory)
    tasks = []
    for path in sorted(directory.glob("*.yaml")):
        content = read_yaml(path)
        schema = content.get("schema") if isinstance(content, Mapping) else None
        other = isinstance(schema, str) and schema.startswith("acp-") and not schema.startswith("acp-task/")
        if other and "task_id" not in content:
            continue
        task = read_versioned(path, Task, TASK_SCHEMA, content)
        if task.task_id != path.stem:
            raise InputError(
                f"expected the name of the file, {path.stem!r} (got {task.task_id!r})",
                file=path,
                field="task_id",
            )
        tasks.append(task)
    if not tasks:
        raise InputError("folder holds no task file (*.yaml)", file=directory)
    return sorted(tasks, key=lambda task: task.task_id)


def find_task(task_id: str, dirs: Iterable[str | Path] | None = None) -> Task:
    """Read the task ``task_id`` from the first of ``dirs`` that has it.

    Args:
        task_id: the task's id, which is also the name of its file.
        dirs: folders to look in; by default the tasks folder and its ``demo`` subfolder.

    Raises:
        InputError: no folder has the task, or its file is broken.
    """
    check_id(task_id, "task_id")
    if dirs is None:
        folder = default_tasks_dir()
        dirs = [folder, folder / "demo"]
    folders = [Path(folder) for folder in dirs]
    for folder in folders:
        path = folder / f"{task_id}.yaml"
        if path.is_file():
            task = load_task(path)
            if task.task_id != task_id:
                raise InputError(
                    f"expected the name of the file, {task_id!r} (got {task.task_id!r})",
                    file=path,
                    field="task_id",
                )
            return task
    raise InputError(
        f"no task {task_id!r} in {', '.join(str(folder) for folder in folders)}", field="task_id"
    )
