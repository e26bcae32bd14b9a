"""The table of benchmarks: everything measured is in it, and so is everything that was not."""

import importlib.util
import sys
import textwrap

import pytest


@pytest.fixture(scope="module")
def bench_run(repository):
    """The module ``benchmarks/run.py``, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("bench_run", repository / "benchmarks" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, repository):
    """Benchmarks that succeed, fail half way, hang, and a script that is none."""
    path = str(repository / "benchmarks")
    head = f"import sys\nsys.path.insert(0, {path!r})\nfrom bench import Row, compare, main\n"

    def write(name, body):
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(body))

    write(
        "quick",
        """
        def measure():
            return [
                compare("fast | work", 30.0, "tiles/s", "peer", 10.0, must_reach=2.0),
                compare("slow work", 8.0, "s", "peer", 6.0, must_reach=1, lower_is_better=True, note="as is"),
                compare("no peer here", 5.0, "s", "other", None, must_reach=1.5, note="does not install"),
                Row("share of the forward", 0.97, "", must_reach=0.95),
            ]
        main(measure, None)
        """,
    )
    write("broken", 'raise RuntimeError("no such\\ninput")\n')
    write("hanging", "import time\ntime.sleep(60)\n")
    (tmp_path / "helper.py").write_text("raise SystemExit(3)\n")
    return tmp_path


def test_only_scripts_that_are_benchmarks_are_run_in_a_fixed_order(bench_run, folder):
    assert bench_run.benchmarks(folder) == ["broken", "hanging", "quick"]


def test_every_benchmark_of_the_project_is_found(bench_run, repository):
    found = bench_run.benchmarks()
    scripts = {path.stem for path in (repository / "benchmarks").glob("*.py")}
    # The two shared modules, and a measure of one study's attention, which has no peer.
    assert found == sorted(scripts - {"bench", "run", "attention_truth"})


def test_rows_of_a_benchmark_reach_the_table_as_they_are(bench_run, folder):
    outcome = bench_run.run("quick", folder)
    assert outcome.failure == "" and len(outcome.rows) == 4
    lines = bench_run.page([outcome], [("Processor", "x")]).splitlines()
    table = [line for line in lines if line.startswith("| quick")]
    assert table == [
        "| quick | fast \\| work | 30 tiles/s | peer | 10 tiles/s | 3.00 | 2 x | yes |  |",
        "| quick | slow work | 8 s | peer | 6 s | 0.75 | 1 x | no | as is |",
        "| quick | no peer here | 5 s | other | not measured |  | 1.5 x | not measured | does not install |",
        "| quick | share of the forward | 0.97 |  |  |  | 0.95 | yes |  |",
    ]
    assert "2 of 4 targets met; 1 benchmarks, 0 failed." in lines


def test_a_failure_is_a_line_of_the_table_and_stops_nothing(bench_run, folder):
    outcomes = [bench_run.run(name, folder, timeout_s=20) for name in ("broken", "quick")]
    outcomes.insert(1, bench_run.run("hanging", folder, timeout_s=1.0))
    assert [outcome.failure for outcome in outcomes] == ["input", "took over 1 s", ""]
    text = bench_run.page(outcomes, [])
    assert "| broken | failed | | | | | | no | input |" in text
    assert "| hanging | failed | | | | | | no | took over 1 s |" in text
    assert "3 benchmarks, 2 failed" in text and "| quick | slow work |" in text


def test_the_machine_is_named_without_host_or_path(bench_run):
    import platform

    facts = dict(bench_run.machine())
    assert facts["Python"] == platform.python_version()
    assert "cores" in facts["Processor"] and facts["Memory"].endswith("GiB")
    assert "numpy " in facts["Packages"] and "torch " in facts["Packages"]
    assert set(facts) == {"Processor", "Memory", "System", "GPU", "Python", "Packages"}
    assert not any(f"/{part}/" in text for text in facts.values() for part in ("home", "root", "usr", "work"))


def test_an_unknown_name_is_refused(bench_run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "nothing_of_the_kind"])
    with pytest.raises(SystemExit) as stop:
        bench_run.main()
    assert stop.value.code == 2 and "nothing_of_the_kind" in capsys.readouterr().err
