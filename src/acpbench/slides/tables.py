"""Tables as people have them: CSV, TSV or semicolons, UTF-8 or UTF-16, with or without BOM, or XLSX."""

from __future__ import annotations

import csv
import datetime
import io
import os
import zipfile
from typing import Any

from acpbench.core.errors import InputError
from acpbench.core.files import read_bytes

MAX_TABLE_BYTES = 64 * 1024 * 1024
MAX_SHEET_BYTES = 512 * 1024 * 1024
"""Largest XLSX content after decompression."""

MAX_SHEET_COLUMNS = 4096
MAX_SHEET_CELLS = 20_000_000

_OLD_EXCEL = b"\xd0\xcf\x11\xe0"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_table(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Rows of a table as dictionaries of text, one for each row that is not empty.

    The delimiter (comma, tab or semicolon) is the one most frequent in the header line. Of an XLSX file the
    first sheet is read, with the values its formulas had when it was saved. Columns without a name are left
    out where they are empty throughout, and otherwise called ``column N``.

    Raises:
        InputError: unreadable, no header, a column named twice, or a row longer than the header.
    """
    data = read_bytes(path, max_bytes=MAX_TABLE_BYTES)
    if data.startswith(_OLD_EXCEL):
        raise InputError("is an old Excel file (.xls); save it as .xlsx or .csv", file=path)
    if data.startswith(b"PK\x03\x04"):
        return _rows(_sheet(data, path), path)
    if data.startswith(_UTF16):
        text = data.decode("utf-16", errors="backslashreplace")
    else:
        text = data.decode("utf-8-sig", errors="backslashreplace")
    if "\0" in text:
        raise InputError("is not a text table (it holds NUL bytes)", file=path)
    header = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(",\t;", key=header.count)
    try:
        # Strict: a quote that is never closed would take all later rows into its cell, unnoticed.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return _rows(list(reader), path)
    except csv.Error as error:
        where = f"line {reader.line_num}: {error}"
        raise InputError(f"is not a readable table ({where})", file=path) from None


def _rows(table: list[list[str]], path: object) -> list[dict[str, str]]:
    table = [row for row in table if any(cell.strip() for cell in row)]
    if not table:
        raise InputError("is empty; expected a header row", file=path)
    header = [name.strip() for name in table[0]]
    used = [
        i
        for i, name in enumerate(header)
        if name or any(cell.strip() for r in table[1:] for cell in r[i : i + 1])
    ]
    names = {i: header[i] or f"column {i + 1}" for i in used}
    twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
    if twice:
        raise InputError(f"has two columns named {twice[0]!r}", file=path)
    rows = []
    for number, row in enumerate(table[1:], start=2):
        if any(cell.strip() for cell in row[len(header) :]):
            raise InputError(f"row {number} has {len(row)} cells for {len(header)} columns", file=path)
        rows.append({name: row[i] if i < len(row) else "" for i, name in names.items()})
    return rows


def _sheet(data: bytes, path: object) -> list[list[str]]:
    import openpyxl

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_SHEET_BYTES:
                raise InputError(f"holds more than {MAX_SHEET_BYTES} bytes; save it as .csv", file=path)
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        try:
            table, n_cells = [], 0
            for row in book.worksheets[0].iter_rows(values_only=True):
                n_cells += len(row)
                if len(row) > MAX_SHEET_COLUMNS or n_cells > MAX_SHEET_CELLS:
                    # One stray cell far away makes a sheet of millions of empty ones.
                    raise InputError(
                        f"its first sheet has over {MAX_SHEET_COLUMNS} columns or {MAX_SHEET_CELLS} cells; "
                        "delete what lies far out, or save it as .csv",
                        file=path,
                    )
                table.append([_cell(value) for value in row])
            return table
        finally:
            book.close()
    except InputError:
        raise
    except Exception as error:  # a library for foreign files: any failure means the file
        raise InputError(
            f"is not a readable XLSX file ({type(error).__name__}: {error})", file=path
        ) from None


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    return str(value)
