"""A small, safe subset of Markdown: headings, lists, tables, code, bold and italic.

Every character is escaped before any tag is added, links stay text, and raw HTML is shown as written: the
source is an agent's, and must not be able to load, link or style anything.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_BULLET = re.compile(r"[ \t]{0,8}(?:[-*+]|(\d{1,3})[.)])[ \t]+(\S.*)")
_BOLD = re.compile(r"\*\*([^*\n]{1,400})\*\*")
_ITALIC = re.compile(r"(?<![*\w])\*([^*\s](?:[^*\n]{0,300}[^*\s])?)\*(?![*\w])")
_CODE = re.compile(r"`([^`\n]{1,400})`")
_RULE = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_MAX_COLUMNS = 20


def _inline(line: str) -> str:
    # Code first, split out, so that asterisks inside it stay as they are.
    parts = _CODE.split(str(escape(line)))
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = f"<code>{part}</code>"
        else:
            parts[index] = _ITALIC.sub(r"<em>\1</em>", _BOLD.sub(r"<strong>\1</strong>", part))
    return "".join(parts)


def _cells(line: str) -> list[str]:
    line = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in line.split("|")][:_MAX_COLUMNS]


def _table(lines: list[str]) -> str:
    """Rows below a header and a rule of dashes as a table; any other run of bars as it was written."""
    if len(lines) < 2 or not _RULE.fullmatch(lines[1].strip()):
        return "<pre>" + "\n".join(str(escape(line)) for line in lines) + "</pre>"
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in _cells(lines[0]))
    body = "".join(
        "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in _cells(line)) + "</tr>" for line in lines[2:]
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


class _Writer:
    """Blocks written so far and the one being read."""

    def __init__(self, top: int, anchors: bool) -> None:
        self.out: list[str] = []
        self.top = top
        self.anchors: set[str] | None = set() if anchors else None
        self.lines: list[str] = []
        self.kind = ""

    def flush(self) -> None:
        """Close the open block."""
        lines, kind = self.lines, self.kind
        self.lines, self.kind = [], ""
        if kind == "p":
            # One paragraph flows; two spaces at a line's end break it.
            text = "".join(
                _inline(line.strip()) + ("" if last else "<br>" if line.endswith("  ") else " ")
                for last, line in ((index == len(lines) - 1, line) for index, line in enumerate(lines))
            )
            self.out.append(f"<p>{text}</p>")
        elif kind in ("ul", "ol"):
            self.out.append(f"<{kind}>" + "".join(f"<li>{_inline(i)}</li>" for i in lines) + f"</{kind}>")
        elif kind == "table":
            self.out.append(_table(lines))
        elif kind == "pre":
            self.out.append("<pre>" + "\n".join(str(escape(line)) for line in lines) + "</pre>")

    def add(self, kind: str, line: str) -> None:
        """Add a line to a block of this kind, closing one of another kind."""
        if self.kind != kind:
            self.flush()
            self.kind = kind
        self.lines.append(line)

    def heading(self, depth: int, text: str) -> None:
        """Write a heading, with an id of its first two words when anchors are wanted."""
        self.flush()
        level = min(depth + self.top - 1, 6)
        mark = ""
        if self.anchors is not None:
            name = "-".join(re.findall(r"[a-z0-9]+", text.lower())[:2])
            if name and name not in self.anchors:
                self.anchors.add(name)
                mark = f' id="{name}"'
        self.out.append(f"<h{level}{mark}>{_inline(text)}</h{level}>")


def to_html(text: str, top: int = 4, anchors: bool = False) -> Markup:
    """Render ``text`` (already bounded and cleaned) to safe HTML.

    Args:
        text: Markdown.
        top: level of the highest heading.
        anchors: give headings ids; only for the benchmark's own documents, ids of an agent could clash.
    """
    writer = _Writer(top, anchors)
    fenced = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            writer.flush()
            fenced = not fenced
            writer.kind = "pre" if fenced else ""
        elif fenced:
            writer.lines.append(line)
        elif line.lstrip().startswith("|"):
            writer.add("table", line)
        elif heading := _HEADING.fullmatch(line):
            writer.heading(len(heading.group(1)), heading.group(2))
        elif bullet := _BULLET.fullmatch(line):
            writer.add("ol" if bullet.group(1) else "ul", bullet.group(2))
        elif not line.strip():
            writer.flush()
        elif line.startswith("    ") and writer.kind in ("", "pre"):
            writer.add("pre", line[4:])
        elif line.startswith("  ") and writer.kind in ("ul", "ol"):
            writer.lines[-1] += " " + line.strip()
        else:
            writer.add("p", line)
    writer.flush()
    return Markup("\n".join(writer.out))
