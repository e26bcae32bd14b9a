"""Here-documents: what was typed, and what a command reads."""

from __future__ import annotations

import json
import time
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
        # What the shell fills in is not typed.
        ('cat > m.json <<EOF\n{"auroc": $AUROC}\nEOF', []),
        ("cat > m.json <<EOF\n{\"auroc\": '$(python a.py)'}\nEOF", []),
        ("cat > m.json <<EOF\n`python a.py`\nEOF", []),
        ("cat > m.json <<EOF\n5 $ or \\$X\nEOF", ["m.json"]),
        ("cat > m.json <<'EOF'\n$AUROC\nEOF", ["m.json"]),
        ("echo \"it's $X, isn't it\" > m.json", []),
        ('echo "it\'s 0.9" > m.json', ["m.json"]),
        ("cat <<< $X > m.json", []),
        # Marks, comments and lines as a shell reads them.
        ("cat > m.json <<'END-OF'\n{}\nEND-OF\n", ["m.json"]),
        ("cat > m.json <<\\EOF\n$X\nEOF\n", ["m.json"]),
        ("cat > m.json <<'1'\n{}\n1\n", ["m.json"]),
        ("cat > m.json << EOF\r\nx\r\nEOF\r\n", ["m.json"]),
        ("cat > a.txt <<EOF\n\tEOF\necho 1 > b.txt\nEOF", ["a.txt"]),
        ("cat <<A > a; cat <<B > b\n1\nA\n2\nB\necho 3 > c", ["a", "b", "c"]),
        ("# don't worry\necho 0.93 > m.json", ["m.json"]),
        ("echo done # result > m.json", []),
        ("echo a#b > m.json", ["m.json"]),
        ("echo 0.93 > \\\nm.json", ["m.json"]),
        # Other ways to the same file.
        ("cat <<< '{\"a\": 1}' > m.json", ["m.json"]),
        ("echo $'{\"a\": 1}' > m.json", ["m.json"]),
        ("echo 0.93 |& tee m.json", ["m.json"]),
        ("echo 0.93 >& m.json", ["m.json"]),
        ("echo 0.93 >&2", []),
        ("eval 'echo 0.93 > m.json'", ["m.json"]),
        ("timeout 5 bash -c 'echo 0.93 > m.json'", ["m.json"]),
        ("sudo -n env A=1 tee m.json <<EOF\nx\nEOF", ["m.json"]),
        ("env python make.py > m.json", []),
        ("apply_patch <<'P'\n*** Begin Patch\n*** Add File: m.json\n+{}\n*** End Patch\nP", ["m.json"]),
    ],
)
def test_only_text_that_stands_in_the_command_is_typed(command: str, typed: list[str]) -> None:
    assert typed_files(command) == typed
    assert "task.json" not in without_documents(command)


@pytest.mark.parametrize(
    "command",
    [
        "<<A\n\tA\n" * 50_000,
        "<<A\nA\n" * 50_000,
        "cat <<A <<A <<A\n" * 50_000 + "A\n" * 50_000,
        "# x\n" * 200_000,
    ],
)
def test_no_command_takes_long(command: str) -> None:
    start = time.monotonic()
    typed_files(command)
    assert time.monotonic() - start < 5


def test_a_typed_file_is_a_write_beside_the_command(tmp_path: Path) -> None:
    command = f"/bin/sh -lc \"cat > metrics.json <<'EOF'\n{BODY}EOF\""
    call = {"tool_call_id": "a", "function_name": "command_execution", "arguments": {"command": command}}
    step = {"step_id": 1, "source": "agent", "message": "", "tool_calls": [call]}
    (tmp_path / "trajectory.json").write_text(json.dumps({"steps": [step]}))
    found = [(event.kind, event.name) for event in stream_events(tmp_path)]
    assert found[1:] == [("write", "metrics.json")]
    assert found[0][0] == "command"
