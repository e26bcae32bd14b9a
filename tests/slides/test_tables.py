"""Tables in the forms that people have them."""

import datetime

import openpyxl
import pytest

from acpbench.core.errors import InputError
from acpbench.core.files import read_csv
from acpbench.rubric.formats import parse_table
from acpbench.slides.tables import read_table

ROWS = [{"ID": "a", "Größe": "1,5"}, {"ID": "b", "Größe": "x y"}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_one_table_in_every_dress(tmp_path, encoding, end, delimiter):
    lines = [f"ID{delimiter}Größe", f'a{delimiter}"1,5"', "", f'"b"{delimiter}"x y"', ""]
    (tmp_path / "t.csv").write_bytes(end.join(lines).encode(encoding))
    assert read_table(tmp_path / "t.csv") == ROWS


def test_quoted_cells_may_hold_delimiters_quotes_and_line_ends(tmp_path):
    (tmp_path / "t.csv").write_bytes(b'a,b\r\n"x,""y""","two\r\nlines"\r\n')
    assert read_table(tmp_path / "t.csv") == [{"a": 'x,"y"', "b": "two\r\nlines"}]


def test_a_quote_that_is_never_closed_takes_no_rows_with_it(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n1,"unclear\n2,x\n3,y\n')
    for read in (read_table, read_csv, read_lines):
        with pytest.raises(InputError, match="not a readable table"):
            read(tmp_path / "t.csv")


def read_lines(path):
    """As the checks of an agent's tables do."""
    loaded = parse_table(path.read_bytes())
    raise InputError(loaded.problem)


@pytest.mark.parametrize("cell", ["XFD2", "D1048576", "ALL30000"])
def test_a_stray_cell_far_out_is_said_and_not_read_to(tmp_path, cell):
    book = openpyxl.Workbook()
    book.active["A1"], book.active["A2"] = "a", 1
    book.active[cell] = "x"
    book.save(tmp_path / "t.xlsx")
    if cell == "D1048576":
        assert len(read_table(tmp_path / "t.xlsx")) == 2
        return
    with pytest.raises(InputError, match="far out"):
        read_table(tmp_path / "t.xlsx")


def test_short_rows_are_filled_and_columns_without_name(tmp_path):
    (tmp_path / "t.csv").write_text(",a,,b,\n0,1,,2,\n1,3\n")
    assert read_table(tmp_path / "t.csv") == [
        {"column 1": "0", "a": "1", "b": "2"},
        {"column 1": "1", "a": "3", "b": ""},
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"a,a\n1,2\n", "two columns named 'a'"),
        (b"a,b\n1,2,3\n", "row 2 has 3 cells for 2 columns"),
        (b"\xd0\xcf\x11\xe0rest", "save it as .xlsx or .csv"),
        (b"PK\x03\x04rest", "not a readable XLSX"),
        (b"a,b\n\x00,1\n", "NUL"),
    ],
)
def test_what_is_no_table_is_refused_with_the_remedy(tmp_path, content, words):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_table(tmp_path / "t.csv")


def test_excel_cells_read_as_excel_shows_them(tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["ID", "n", "f", "yes", "day", "none"])
    sheet.append(["a", 3.0, 0.25, True, datetime.datetime(2020, 1, 31), None])
    book.create_sheet("other").append(["not this one"])
    book.save(tmp_path / "t.xlsx")
    assert read_table(tmp_path / "t.xlsx") == [
        {"ID": "a", "n": "3", "f": "0.25", "yes": "TRUE", "day": "2020-01-31", "none": ""}
    ]


@pytest.mark.parametrize(
    ("name", "n_rows", "first"),
    [
        ("TCGA-CRC-DX_SLIDE.csv", 1971, {"FILENAME": "TCGA-3L-AA1B-01A-01-TS1", "PATIENT": "TCGA-3L-AA1B"}),
        ("PANDA.csv", 9555, {"slide_id": "0005f7aaab2800f6170c399693a96917", "label": "0"}),
        ("clinical_tcga_coadread.csv", 1441, {"case_id": "P-0000674", "subtype": "READ"}),
        ("LUAD-5-gene_TCGA.csv", 1345, {"case_submitter_id": "TCGA-55-8507"}),
    ],
)
def test_real_tables(shared_data, name, n_rows, first):
    path = shared_data / "tables" / name
    if not path.is_file():
        pytest.skip(f"no {name}")
    rows = read_table(path)
    assert len(rows) == n_rows
    assert first.items() <= rows[0].items()


def test_real_excel_table(shared_data):
    path = shared_data / "tables" / "TCGA-CRC-DX_CLINI.xlsx"
    if not path.is_file():
        pytest.skip("no TCGA-CRC-DX_CLINI.xlsx")
    rows = read_table(path)
    assert len({row["PATIENT"] for row in rows}) == len(rows) > 500
    assert rows[0]["PATIENT"].startswith("TCGA-")
