"""A small, safe subset of Markdown: headings, lists, tables as text, fenced code, bold and inline code.

Every character is escaped before any tag is added, links stay text, and raw HTML is shown as written: the
source is an agent's, and must not be able to load, link or style anything.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_BULLET = re.compile(r"[ \t]{0,8}(?:[-*+]|\d{1,3}[.)])[ \t]+(\S.*)")
_BOLD = re.compile(r"\*\*([^*\n]{1,400})\*\*")
_CODE = re.compile(r"`([^`\n]{1,400})`")


def _inline(line: str) -> str:
    # Code first, split out, so that asterisks inside it stay as they are.
    parts = _CODE.split(str(escape(line)))
    for index, part in enumerate(parts):
        parts[index] = f"<code>{part}</code>" if index % 2 else _BOLD.sub(r"<strong>\1</strong>", part)
    return "".join(parts)


def to_html(text: str) -> Markup:
    """Render ``text`` (already bounded and cleaned) to safe HTML. Headings start at ``h4``."""
    out: list[str] = []
    paragraph: list[str] = []
    bullets: list[str] = []
    verbatim: list[str] | None = None

    def flush() -> None:
        if paragraph:
            out.append("<p>" + "<br>".join(paragraph) + "</p>")
            paragraph.clear()
        if bullets:
            out.append("<ul>" + "".join(f"<li>{item}</li>" for item in bullets) + "</ul>")
            bullets.clear()

    table: list[str] = []
    for line in text.split("\n"):
        if verbatim is not None:
            if line.lstrip().startswith("```"):
                out.append("<pre>" + "\n".join(verbatim) + "</pre>")
                verbatim = None
            else:
                verbatim.append(str(escape(line)))
            continue
        if line.lstrip().startswith("|"):
            flush()
            table.append(str(escape(line)))
            continue
        if table:
            out.append("<pre>" + "\n".join(table) + "</pre>")
            table = []
        heading = _HEADING.fullmatch(line)
        bullet = _BULLET.fullmatch(line)
        if line.lstrip().startswith("```"):
            flush()
            verbatim = []
        elif heading:
            flush()
            level = min(len(heading.group(1)) + 3, 6)
            out.append(f"<h{level}>{_inline(heading.group(2))}</h{level}>")
        elif bullet:
            if paragraph:
                flush()
            bullets.append(_inline(bullet.group(1)))
        elif not line.strip():
            flush()
        else:
            if bullets:
                flush()
            paragraph.append(_inline(line))
    flush()
    for rest in (table, verbatim):
        if rest:
            out.append("<pre>" + "\n".join(rest) + "</pre>")
    return Markup("\n".join(out))
