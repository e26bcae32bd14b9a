"""Here-documents: what was typed, and what a command reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acpbench.trajectory.events import stream_events
from acpbench.trajectory.shell_text import typed_files, without_documents

BODY = "see task.json\n> not_a_target\n"


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        (f"cat > plan/plan.md <<'EOF'\n{BODY}EOF", ["plan/plan.md"]),
        (f"mkdir -p plan && cat >> 'plan/a b.md' <<EOF\n{BODY}EOF\nls", ["plan/a b.md"]),
        (f"cat <<-'EOF' > metrics.json\n{BODY}\tEOF", ["metrics.json"]),
        (f"tee -a one.txt two.txt <<EOF >/dev/null\n{BODY}EOF", ["one.txt", "two.txt"]),
        (f"cat > a <<A\n{BODY}A\ncat > b <<B\n{BODY}B", ["a", "b"]),
        (f"python - <<'EOF' > outputs/metrics.json\n{BODY}EOF", []),
        (f"cat data.csv | python train.py <<EOF > out.csv\n{BODY}EOF", []),
        ("cat a > b", []),
        ("tee a <<EOF", []),
        ("echo $((1<<2)) > c", []),
        ("""echo '{"auroc": 0.93}' > outputs/metrics.json""", ["outputs/metrics.json"]),
        ("""mkdir -p a; printf '%s\\n' "auroc,0.93" >>a/m.csv && cat a/m.csv""", ["a/m.csv"]),
        ("""/bin/bash -lc 'echo "AUROC 0.93" > "reports/my report.md"'""", ["reports/my report.md"]),
        ("""bash -lc "cd w && echo \\"AUROC 0.93\\" > r.md\"""", ["r.md"]),
        ("echo 0.93 | tee -a a.txt >/dev/null", ["a.txt"]),
        ("echo 0.93 | cat > a.txt", ["a.txt"]),
        ("echo 0.93 2>err.txt 1>out.txt", ["out.txt"]),
        ("(echo 1; echo 2) > both", []),
        ("if true; then echo 0.93 > a; fi", ["a"]),
        ("X=1 echo 0.93 > a", ["a"]),
        ("echo don\\'t > a", ["a"]),
        ("""echo '$5' > a""", ["a"]),
        ('echo "$AUROC" > a', []),
        ("echo $(python metrics.py) > a", []),
        ("echo `python metrics.py` > a", []),
        ("echo 0.93 | python make.py > a", []),
        ("echo done; python make.py > a", []),
        ("echo done || python make.py > a", []),
        ("python make.py 'echo 0.93 > b' > a", []),
        ("'echo 0.93 > a", []),
        ("git commit -m 'echo x > y'", []),
    ],
)
def test_only_text_that_stands_in_the_command_is_typed(command: str, typed: list[str]) -> None:
    assert typed_files(command) == typed
    assert "task.json" not in without_documents(command)


def test_a_typed_file_is_a_write_beside_the_command(tmp_path: Path) -> None:
    command = f"/bin/sh -lc \"cat > metrics.json <<'EOF'\n{BODY}EOF\""
    call = {"tool_call_id": "a", "function_name": "command_execution", "arguments": {"command": command}}
    step = {"step_id": 1, "source": "agent", "message": "", "tool_calls": [call]}
    (tmp_path / "trajectory.json").write_text(json.dumps({"steps": [step]}))
    found = [(event.kind, event.name) for event in stream_events(tmp_path)]
    assert found[1:] == [("write", "metrics.json")]
    assert found[0][0] == "command"
