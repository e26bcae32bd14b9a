"""Bounded reading of whatever tables an agent left: csv, tsv, json, jsonl, xlsx and, when possible, parquet.

Nothing here trusts its input: sizes are checked before a file is read, a spreadsheet's unpacked size before
it is opened, and every failure is a reason, never an exception.
"""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv, read_json, read_text

TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".xlsx", ".parquet")
MAX_TABLE_BYTES = 16 * 1024 * 1024
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
MAX_ROWS = 200_000
MAX_COLUMNS = 512
_NESTED_KEYS = ("predictions", "rows", "data", "results", "cases", "records", "items")


@dataclass(frozen=True)
class Table:
    """A table as text cells, or the reason why there is none.

    Attributes:
        columns: header names, stripped.
        rows: one dictionary a row; a missing value is ``""``.
        reason: ``None`` when it was read, else ``empty``, ``unreadable``, ``too_large`` or ``not_a_table``.
        detail: one line for a person.
    """

    columns: list[str] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)
    reason: str | None = None
    detail: str = ""


def cell(value: Any) -> str:
    """A cell as stripped text; null, NaN and the usual markers of a missing value are ``""``."""
    if value is None:
        return ""
    if isinstance(value, float):
        return "" if value != value else repr(value)
    text = str(value).strip()
    return "" if text.casefold() in ("nan", "none", "null", "na", "n/a", "<na>") else text[:1000]


def read_table(path: Path) -> Table:
    """Read one file as a :class:`Table`; never raises for anything an agent can have written."""
    suffix = path.suffix.casefold()
    try:
        size = path.stat().st_size
        if size == 0:
            return Table(reason="empty", detail="the file has no bytes")
        if size > MAX_TABLE_BYTES:
            return Table(reason="too_large", detail=f"larger than {MAX_TABLE_BYTES} bytes")
        if suffix in (".csv", ".tsv"):
            return _from_records(read_csv(path, max_bytes=MAX_TABLE_BYTES))
        if suffix == ".jsonl":
            lines = [json.loads(line) for line in read_text(path).split("\n") if line.strip()]
            return _from_records(lines)
        if suffix == ".json":
            return _from_json(read_json(path))
        if suffix in (".xlsx", ".parquet"):
            return _from_binary(path, _from_xlsx if suffix == ".xlsx" else _from_parquet)
    except InputError as error:
        reason = "empty" if "is empty" in error.message else "unreadable"
        return Table(reason=reason, detail=error.message)
    except (ValueError, OSError, RecursionError, MemoryError) as error:
        return Table(reason="unreadable", detail=type(error).__name__)
    return Table(reason="not_a_table", detail=f"no reader for {suffix}")


def _from_binary(path: Path, reader: Callable[[Path], Table]) -> Table:
    # Third-party readers raise whatever broken bytes lead them to (KeyError, ParseError, BadZipFile, ...).
    try:
        return reader(path)
    except Exception as error:
        return Table(reason="unreadable", detail=type(error).__name__)


def _from_records(records: list[Any]) -> Table:
    if not records:
        return Table(reason="empty", detail="no rows")
    if not all(isinstance(record, dict) for record in records):
        return Table(reason="not_a_table", detail="rows are not objects")
    if len(records) > MAX_ROWS:
        return Table(reason="too_large", detail=f"more than {MAX_ROWS} rows")
    columns: dict[str, None] = {}
    for record in records:
        names = [str(key).strip() for key in record]
        if len(set(names)) < len(names):
            return Table(reason="unreadable", detail="two columns differ only in blanks around their names")
        columns |= dict.fromkeys(names)
        if len(columns) > MAX_COLUMNS:
            return Table(reason="not_a_table", detail=f"more than {MAX_COLUMNS} columns")
    rows = []
    for record in records:
        named = {str(key).strip(): cell(value) for key, value in record.items()}
        rows.append({column: named.get(column, "") for column in columns})
    return Table(columns=list(columns), rows=rows)


def _from_json(value: Any) -> Table:
    if isinstance(value, dict):
        for key in _NESTED_KEYS:
            if isinstance(value.get(key), list) and value[key] and isinstance(value[key][0], dict):
                return _from_records(value[key])
        lists = [item for item in value.values() if isinstance(item, list)]
        if len(value) >= 2 and len(lists) == len(value) and len({len(item) for item in lists}) == 1:
            keys = list(value)
            return _from_records([dict(zip(keys, row, strict=True)) for row in zip(*lists, strict=True)])
        return Table(reason="not_a_table", detail="a JSON object that is not a table")
    if isinstance(value, list):
        return _from_records(value)
    return Table(reason="not_a_table", detail="JSON that is not a table")


def _from_xlsx(path: Path) -> Table:
    # A workbook is a zip: the sizes its directory declares are checked before a byte is unpacked.
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED_BYTES:
            return Table(reason="too_large", detail=f"unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    import openpyxl

    workbook = openpyxl.load_workbook(path, read_only=True, data_only=True, keep_links=False)
    try:
        for sheet in workbook.worksheets:
            rows = sheet.iter_rows(values_only=True, max_col=MAX_COLUMNS, max_row=MAX_ROWS + 1)
            header = next(rows, None)
            if not header or not any(cell(name) for name in header):
                continue
            names = [cell(name) or f"column_{index}" for index, name in enumerate(header)]
            records = [
                dict(zip(names, row, strict=False)) for row in rows if any(cell(value) for value in row)
            ]
            if records:
                return _from_records(records)
        return Table(reason="empty", detail="no sheet has rows")
    finally:
        workbook.close()


def _from_parquet(path: Path) -> Table:
    if importlib.util.find_spec("pyarrow") is None:
        return Table(reason="unreadable", detail="parquet not readable here (pyarrow is not installed)")
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    if file.metadata.num_rows > MAX_ROWS or file.metadata.num_columns > MAX_COLUMNS:
        return Table(reason="too_large", detail=f"more than {MAX_ROWS} rows or {MAX_COLUMNS} columns")
    return _from_records(file.read().to_pylist())
