"""Here-documents in a shell line: files that were typed rather than made by a program."""

from __future__ import annotations

import re

_DOCUMENT = re.compile(
    r"(?P<before>[^\n]*?)<<-?[ \t]*(?P<quote>['\"]?)(?P<mark>[A-Za-z_]\w*)(?P=quote)(?P<after>[^\n]*)\n"
    r"(?P<body>.*?)^[ \t]*(?P=mark)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_TARGET = re.compile(r"(?<![0-9&>])>{1,2}\|?\s*('[^']*'|\"[^\"]*\"|[^\s;&|<>'\"]+)")
_SEPARATOR = re.compile(r"&&|\|\||[;|]")


def typed_files(command: str) -> list[str]:
    """Files whose text stands in the command itself: ``cat > FILE <<MARK`` and ``tee FILE <<MARK``.

    What another program makes of a here-document (``python - <<MARK``) is not typed.
    """
    found = []
    for document in _DOCUMENT.finditer(command):
        line = _SEPARATOR.split(document["before"])[-1] + " " + _SEPARATOR.split(document["after"])[0]
        words = line.split()
        targets = [target.strip("'\"") for target in _TARGET.findall(line)]
        program = words[0].rsplit("/", 1)[-1] if words else ""
        if program == "tee":
            found += [word.strip("'\"") for word in _TARGET.sub(" ", line).split()[1:] if word[0] != "-"]
        elif program == "cat" or (program.startswith(">") and targets):
            found += targets
    return found


def without_documents(command: str) -> str:
    """The command without the text of its here-documents."""
    return _DOCUMENT.sub(lambda found: f"{found['before']}{found['after']}\n", command)
