"""Names in traces full of terminal commands and formulas: no text output of any verb passes them on."""

import csv
import io
import shutil
from pathlib import Path

import pytest

from jitter.cli import main
from tests.support.databases import open_database
from tests.support.printed import json_of

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
COMMANDS = "\x1b]0;owned[red]\x07\x1b[2J\x9b31m\x85\u202e\u2028\x7f\r"
FORMULA = "\n=cmd|' /C calc'!A0"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of the sample in which kernels, hosts and ranges have such names."""
    folder = tmp_path_factory.mktemp("hostile")
    traces = folder / "traces"
    traces.mkdir()
    for file in sorted(SAMPLE.glob("rank*.sqlite")):
        own = Path(shutil.copy(file, traces))
        with open_database(own) as trace:
            trace.execute("UPDATE StringIds SET value = ? || value || ?", ("", COMMANDS))
            trace.execute("UPDATE StringIds SET value = ? || value WHERE value LIKE '%void%'", (FORMULA,))
            trace.execute("UPDATE NVTX_EVENTS SET text = text || ?", (COMMANDS,))
            trace.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = value || ? WHERE name = 'Hostname'", (COMMANDS,))
            trace.execute("UPDATE TARGET_INFO_GPU SET name = name || ?", (COMMANDS,))
    root = folder / "lake"
    assert main(["ingest", str(traces), "-o", str(root), "--quiet"]) == 0
    return root


def commands(text: str) -> set[str]:
    return {char for char in text if not char.isprintable() and char != "\n"}


QUERY = "select kernel_name, host from kernels join ranks using (rank) where kind = 'compute'"
OUTPUTS = [
    "inspect {traces}",
    "inspect {traces} --json",
    "report {lake}",
    "report {lake} --markdown",
    "report {lake} --json",
    "steps {lake}",
    "table {lake} --step 2003",
    "table {lake} --by kernel",
    "table {lake} --by kernel --format json",
    "collectives {lake} --by rank",
    "collectives {lake} --by rank --format csv",
    "collectives {lake} --json",
    "query {lake} QUERY --format text",
    "query {lake} QUERY --format csv",
    "query {lake} QUERY --format json",
]


def words(line: str, lake: Path) -> list[str]:
    return [
        QUERY if word == "QUERY" else word.format(lake=lake, traces=lake.with_name("traces")) for word in line.split()
    ]


@pytest.mark.parametrize("line", OUTPUTS)
def test_no_output_commands_the_terminal(lake: Path, line: str, capsys: pytest.CaptureFixture[str]):
    assert main(words(line, lake)) == 0
    out, err = capsys.readouterr()
    assert ("�" if line.startswith("steps") else "owned") in out
    assert out.count("owned") == out.replace("\\", "").count("owned[red]")  # no markup of the terminal's either
    assert commands(out) == commands(err) == set()


@pytest.mark.parametrize("line", ["table {lake} --by kernel --format json", "query {lake} QUERY --format json"])
def test_json_holds_names_as_recorded(lake: Path, line: str, capsys: pytest.CaptureFixture[str]):
    names = {value for row in json_of(capsys, *words(line, lake))["rows"] for value in row.values()}
    assert any(isinstance(name, str) and name.startswith(FORMULA) and name.endswith(COMMANDS) for name in names)


@pytest.mark.parametrize("verb", ["query", "table", "export"])
def test_no_cell_is_a_formula(lake: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]):
    alias = FORMULA.replace("'", "").replace('"', "")
    if verb == "query":
        assert main(["query", str(lake), f'select kernel_name as "{alias}" from kernels', "--format", "csv"]) == 0
    elif verb == "table":
        assert main(["table", str(lake), "--by", "kernel", "--format", "csv"]) == 0
    else:
        assert main(["export", str(lake), "--csv", str(tmp_path)]) == 0
    files = [path.read_text() for path in tmp_path.iterdir()] if verb == "export" else []
    texts = [*files, capsys.readouterr().out]
    assert all(commands(text) == set() for text in texts)
    cells = [cell for text in texts for row in csv.reader(io.StringIO(text)) for cell in row]
    assert any("calc" in cell for cell in cells)
    assert not [cell for cell in cells if cell.strip("\n\r\t �")[:1] in tuple("=+@")]
