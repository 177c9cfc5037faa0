"""Tables as csv: cell by cell what the csv module writes, whatever a query gives; but texts command nothing."""

import csv
import datetime
import io
import unicodedata

import pyarrow as pa
import pytest

from jitter.cli.output import table
from jitter.cli.output.table import write_table

NUMBERS = (pa.float32(), pa.float64())
TEXTS = ["x,y", 'q"z', None, "", "two\nlines", "%d%s%%", " spaced ", "\r", "été"]


def harmless(text: str) -> str:
    """The text as a cell: a spreadsheet takes no cell for a formula that begins with an apostrophe."""
    shown = "".join("�" if unicodedata.category(char)[0] in "CZ" and char != " " else char for char in text)
    return f"'{shown}" if shown.replace("�", "").strip()[:1] in tuple("=+-@＝＋－＠") else shown


def oracle(rows: pa.Table) -> str:
    def told(column: pa.ChunkedArray) -> list[object]:
        cells = [f"{v:.3f}" if isinstance(v, float) else v for v in column.to_pylist()]
        return [harmless(v) if isinstance(v, str) and column.type not in NUMBERS else v for v in cells]

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, rows.column_names))
    writer.writerows(zip(*map(told, rows.columns), strict=True))
    return text.getvalue()


TABLES = [
    {"text": TEXTS},
    {
        "a,b": TEXTS,
        "100%s": [1, None, *range(7)],
        "f": [0.0005, None, float("nan"), -0.0, float("inf"), *[1e20] * 4],
    },
    {
        "whole": [1, -2, 2**62],
        "fraction": [1.0005, 2.0015, -3.5],
        "names": pa.array(["a", "b", None]).dictionary_encode(),
    },
    {"truth": [True, None], "list": [[1, 2], None], "when": [datetime.datetime(2026, 1, 2, 3), None]},
    {"one": pa.array([None, 1], pa.int32())},
    {"formulas": ["=1+1", "+1", "-1", "@x", "\t=1", "a=1", "'", None], "number": [-1, None, *[-5] * 6]},
    {"=cmd|' /C calc'!A0": ["\n=1+1", "  =1", "\x1b=1"], "\tx": ["\x1b]0;owned\x07", "\x9b31m", "＝1"]},
    {"whole": [None, 1, 2], "text": ["", None, "x"]},
    {"byte": pa.array([0, 127, 255], pa.uint8()), "hash": pa.array([0, 2**63, 2**64 - 1], pa.uint64())},
    {"none": pa.array([], pa.int64()), "text": pa.array([], pa.string())},
]


@pytest.mark.parametrize("columns", TABLES)
def test_as_the_csv_module_writes_it(columns, capsys):
    rows = pa.table(columns)
    write_table(rows, "csv", None, force=False)
    assert capsys.readouterr().out == oracle(rows)


@pytest.mark.parametrize("cells", [1, 4, 7])
@pytest.mark.parametrize("columns", TABLES)
def test_however_few_cells_are_put_into_lines_together(columns, cells, capsys, monkeypatch):
    """Fewer than a row has, too; in some blocks a column has nulls, in others none."""
    monkeypatch.setattr(table, "_CELLS_AT_ONCE", cells)
    rows = pa.table(columns)
    write_table(rows, "csv", None, force=False)
    assert capsys.readouterr().out == oracle(rows)


def test_more_rows_than_are_put_into_lines_together(capsys):
    many = range(100_000)
    rows = pa.table({"n": many, "half": [n / 2 for n in many], "text": [None if n % 3 else f"{n}," for n in many]})
    write_table(rows, "csv", None, force=False)
    assert capsys.readouterr().out == oracle(rows)
