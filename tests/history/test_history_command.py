"""`jitter history` and checks against it."""

import json
from contextlib import closing

import pytest

from jitter import guide
from jitter.cli import main
from jitter.history.database import Database, schema_scripts
from jitter.history.runs import add_run
from tests.guide.test_guide import json_keys, tables
from tests.history.conftest import scaled

FACTORS = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 1.05, 1.052, 1.049]


@pytest.fixture
def history(tmp_path, document, monkeypatch):
    """Nine runs, slower from the seventh on, in the default database of the test."""
    path = tmp_path / "history.sqlite"
    monkeypatch.setenv("JITTER_HISTORY", str(path))
    with closing(Database(str(path))) as database:
        for number, factor in enumerate(FACTORS):
            add_run(database, "gpt", scaled(document, number, factor), {"commit": f"c{number}"})
    return path


def test_list_marks_the_change(history, capsys):
    assert main(["history", "list", "--job", "gpt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(FACTORS)
    marked = [line for line in lines if "▲" in line]
    assert len(marked) == 1
    assert "run6" in marked[0]
    assert "commit=c6" in marked[0]


def test_json_keys_are_those_of_the_guide(history, capsys):
    assert main(["history", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == [f"run{number}" for number in range(len(FACTORS))]
    assert [run["run"] for run in found["runs"] if run["change"]] == ["run6"]
    told = {row[0] for row in tables("history")[1]}
    assert {key for key, _ in json_keys(found)} - {"runs[].labels.commit"} == told


def test_tables_are_those_of_the_guide():
    script = "\n".join(schema_scripts())
    for name, columns in tables("history")[0]:
        assert name == "jitter_history" or f"CREATE TABLE {name}" in script
        assert all(column.strip("` ") in script or name == "jitter_history" for column in columns.split(","))
    assert "history.sqlite" in guide.text("history")


def test_show(history, capsys):
    assert main(["history", "show", "--job", "gpt"]) == 0
    text = capsys.readouterr().out
    assert "Changed with run6" in text
    assert "slower" in text
    assert main(["history", "show", "--job", "none"]) == 2


def test_the_page_has_every_run_and_its_comparison(history, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["history", "show", "--job", "gpt", "--html", "-o", str(page)]) == 0
    text = page.read_text()
    for number in range(len(FACTORS)):
        assert f'id="run-digest{number}"' in text
    assert "The first run of the job." in text
    assert "figures-history" in text
    assert "http://" not in text.split("<script>")[0]


def check(capsys, lake, *more):
    code = main(["check", str(lake), "--baseline", "history:gpt", "--max-regression", "3%", *more])
    return code, capsys.readouterr().out


def test_check_against_the_last_runs(tmp_path, document, lake, monkeypatch, capsys):
    monkeypatch.setenv("JITTER_HISTORY", str(tmp_path / "history.sqlite"))
    assert main(["history", "add", str(lake), "--job", "gpt"]) == 0
    code, line = check(capsys, lake)  # the run itself is no baseline
    assert (code, line) == (3, "UNKNOWN the baseline history:gpt has no other run\n")
    assert check(capsys, lake, "--accept-unknown")[0] == 0
    with closing(Database(str(tmp_path / "history.sqlite"))) as database:
        for number, factor in enumerate([1.0, 1.004, 0.997, 1.002, 0.999, 1.003]):
            add_run(database, "gpt", scaled(document, number, factor), {})
        assert check(capsys, lake)[0] == 0
        for number, factor in enumerate([0.8, 0.804, 0.797, 0.802, 0.799, 0.803, 0.8, 0.801, 0.8, 0.802], 10):
            add_run(database, "gpt", scaled(document, number, factor), {})
    code, line = check(capsys, lake)
    assert code == 1
    assert "slower than baseline by 2" in line
    assert check(capsys, lake, "--last", "16")[0] == 3


def test_empty_history(tmp_path, capsys):
    assert main(["history", "list", "--db", str(tmp_path / "new.sqlite")]) == 0
    assert "the history is empty" in capsys.readouterr().err


@pytest.mark.parametrize("label", ["commit", "=ab", ","])
def test_unreadable_labels(label, lake, tmp_path):
    assert main(["history", "add", str(lake), "--job", "gpt", "--label", label, "--db", str(tmp_path / "h")]) == 2


@pytest.mark.slow
def test_a_click_on_a_run_opens_its_comparison(history, tmp_path, browser):
    page = tmp_path / "page.html"
    assert main(["history", "show", "--job", "gpt", "--html", "-o", str(page)]) == 0
    context = browser.new_context(offline=True, viewport={"width": 1100, "height": 800})
    shown = context.new_page()
    errors = []
    shown.on("console", lambda message: message.type in ("error", "warning") and errors.append(message.text))
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto(page.as_uri())
    shown.wait_for_selector("html[data-drawn]", timeout=60_000)
    assert not shown.evaluate("document.getElementById('run-digest6').open")
    select = "Bokeh.documents.at(-1).get_model_by_name('history:runs').selected.indices = [6]"
    shown.evaluate(select)
    assert shown.evaluate("document.getElementById('run-digest6').open")
    assert errors == []
    context.close()
