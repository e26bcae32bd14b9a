"""No module imports upward: the packages form the list below, and imports point back along it only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ORDER = [
    "core",
    "tasks",
    "slides",
    "features",
    "mil",
    "trajectory",
    "harness",
    "rubric",
    "adjudication",
    "scores",
    "reliability",
    "review",
    "behavior",
    "report",
    "cli",
]
HEAVY = {
    "torch",
    "torchvision",
    "timm",
    "sklearn",
    "pandas",
    "matplotlib",
    "snakemake",
    "skimage",
    "openslide",
}


def upward_imports(source: str, package: str) -> list[str]:
    """Packages that a module of ``package`` imports although they stand after it (or are unknown)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom):
            if node.level:
                found.append("relative import")
            base = node.module or ""
            names = [base] + [f"{base}.{alias.name}" for alias in node.names if base == "acpbench"]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] != "acpbench" or len(parts) < 2 or parts[1] == "__version__":
                continue
            if parts[1] not in ORDER or ORDER.index(parts[1]) > ORDER.index(package):
                found.append(parts[1])
    return found


def modules(repository: Path) -> list[Path]:
    return sorted((repository / "src" / "acpbench").rglob("*.py"))


def test_every_package_is_in_the_order(repository: Path) -> None:
    root = repository / "src" / "acpbench"
    packages = {path.relative_to(root).parts[0] for path in modules(repository) if path.parent != root}
    assert packages <= set(ORDER)
    assert len(modules(repository)) > len(ORDER)


def test_no_module_imports_upward(repository: Path) -> None:
    wrong = {}
    for path in modules(repository):
        package = path.relative_to(repository / "src" / "acpbench").parts[0]
        if package in ORDER and (found := upward_imports(path.read_text(), package)):
            wrong[path.relative_to(repository).as_posix()] = found
    assert wrong == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from acpbench.cli import main", ["cli"]),
        ("import acpbench.report.render", ["report"]),
        ("from acpbench import scores", ["scores"]),
        ("def f():\n    from acpbench.harness.registry import TOOLS", ["harness"]),
        ("from acpbench.core.files import read_json", []),
        ("from acpbench import __version__", []),
    ],
)
def test_the_check_sees_an_upward_import(source: str, expected: list[str]) -> None:
    assert upward_imports(source, "tasks") == expected


def test_the_command_line_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = "import sys, acpbench.cli.main; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not HEAVY & {name.split(".")[0] for name in loaded.split()}


def test_the_library_never_imports_snakemake(repository: Path) -> None:
    assert not [path for path in modules(repository) if "import snakemake" in path.read_text()]
