"""The history of a job's runs: its database, change points, scaling, and the command."""

import re
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from jitter import guide
from jitter.cli import main
from jitter.core.errors import JitterError
from jitter.history.change_points import find_change_points, find_outside
from jitter.history.database import Database, schema_scripts, split_statements
from jitter.history.runs import HistoryRun, add_run, format_date, list_runs, read_documents
from jitter.report.history import describe_findings, describe_history
from tests.accuracy.history import SPREADS, measure_rates
from tests.guide.test_guide import json_keys, tables
from tests.history.conftest import scaled
from tests.support.chromium import open_page
from tests.support.databases import open_database
from tests.support.postgresql_server import PASSWORD, USER
from tests.support.printed import json_of, output_of
from tests.support.version_1_baseline import written_by_version_1


def test_a_regression_of_4_percent_in_runs_that_spread_over_2_percent():
    rates = measure_rates("range ±1%")
    assert rates.found >= 0.95
    assert rates.early <= 0.05
    assert rates.alarmed > 0.5  # one baseline takes the spread between runs for regressions


def test_runs_of_a_standard_deviation_of_1_percent():
    rates = measure_rates("sd 1%")
    assert rates.found >= 0.8
    assert rates.early <= 0.05


@pytest.mark.parametrize("spread", SPREADS)
def test_equal_runs_hold_few_changes(spread):
    assert measure_rates(spread).false <= 0.05


def test_a_change_has_its_place_and_size():
    times = [1e7, 1.002e7, 0.998e7, 1.001e7, 1e7, 1.1e7, 1.102e7, 1.1e7, 1.101e7, 1.099e7, 1.0e7, 1.0e7]
    slower, faster = find_change_points(times)
    assert (slower.run, faster.run) == (5, 10)
    assert slower.fraction == pytest.approx(0.1, abs=0.002)
    assert faster.fraction == pytest.approx(-0.09, abs=0.002)


@pytest.mark.parametrize(
    ("times", "percent"),
    [
        ([3.89e6, 3.89e6, 3.90e6, 3.90e6, 4.58e6], 17.6),
        ([3.89e6, 3.89e6, None, 3.90e6, 3.90e6, 3.2e6, None], -17.8),
        ([3.89e6, 3.89e6, 3.90e6, 3.90e6, 3.91e6], None),
        ([3.89e6, 3.90e6, 3.90e6, 4.58e6], None),  # three runs do not tell their spread
        ([3.8e6, 4.3e6, 3.6e6, 4.1e6, 4.58e6], None),
        ([3.89e6, 3.89e6, 3.90e6, 3.90e6, 4.58e6, 4.58e6], None),  # a change, with its second run
        ([], None),
    ],
)
def test_the_last_run_outside_the_spread(times, percent):
    found = find_outside(times)
    assert (found is None) == (percent is None)
    if found is not None:
        assert 100 * found.fraction == pytest.approx(percent, abs=0.05)
        assert times[found.run] == found.after_ns


@pytest.mark.parametrize("times", [[], [1e7, 1e7, 1e7, 2e7, 2e7], [1e7, 1.001e7, 0.999e7, 1e7, 1.5e7, 1e7, 1.001e7]])
def test_too_few_runs_and_one_slow_run_are_no_change(times):
    assert find_change_points(times) == []


def test_unknown_times_are_passed_over():
    times = [1e7, None, 1.001e7, 0.999e7, None, 1e7, 1.2e7, None, 1.2e7]
    (change,) = find_change_points(times)
    assert change.run == 6


def test_runs_whose_lakes_have_one_name_are_told_apart(tmp_path, document):
    with closing(Database(str(tmp_path / "history.sqlite"))) as database:
        for number, (name, labels) in enumerate(
            [("lake", {"commit": "ab"}), ("lake", {}), ("other", {"commit": "cd"})]
        ):
            add_run(database, "gpt", msgspec.structs.replace(scaled(document, number), label=name), labels)
        runs = list_runs(database, "gpt")
        titles = ["lake (commit=ab)", f"lake ({format_date(runs[1].added_ns)})", "other"]
        assert [run.title for run in runs] == [one.label for one in read_documents(database, runs)] == titles


def test_a_run_is_added_once(location, document):
    with closing(Database(location)) as database:
        assert add_run(database, "gpt", document, {"commit": "ab12cd"})
        assert not add_run(database, "gpt", document, {"commit": "ef34", "driver": "560.35"})
        assert add_run(database, "bert", document, {})
    with closing(Database(location)) as database:
        (run,) = list_runs(database, "gpt")
        assert run.labels == {"commit": "ef34", "driver": "560.35"}
        assert (run.ranks, run.steps, run.name) == (document.ranks, len(document.steps), document.label)
        assert read_documents(database, [run]) == [document]
        assert [one.job for one in list_runs(database)] == ["bert", "gpt"]


def test_two_writers_lose_nothing(location, document):
    """Both open the empty database at once, so they also create the schema at once."""
    errors = []
    barrier = threading.Barrier(4)

    def write(first: int) -> None:
        try:
            barrier.wait()
            with closing(Database(location)) as database:
                for number in range(first, first + 8):
                    add_run(database, "gpt", scaled(document, number), {"number": str(number)})
                    add_run(database, "gpt", scaled(document, 100), {f"writer{first}": "was here"})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with closing(Database(location)) as database:
        runs = {run.digest: run for run in list_runs(database, "gpt")}
    assert set(runs) == {f"digest{10 * n + own}" for n in range(4) for own in range(8)} | {"digest100"}
    assert set(runs["digest100"].labels) == {"writer0", "writer10", "writer20", "writer30"}


def _engine(location: str) -> sa.Engine:
    url = location if "://" in location else f"sqlite:///{location}"
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.pool.NullPool)


@pytest.mark.parametrize("version", range(1, len(schema_scripts())))
def test_an_older_database_is_migrated(location, document, version):
    """A database as the oldest version left it, with a run in it, is read and written by this one."""
    Path(location).parent.mkdir(parents=True, exist_ok=True) if "://" not in location else None
    with _engine(location).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE jitter_history (version INTEGER NOT NULL)")
        connection.exec_driver_sql(f"INSERT INTO jitter_history (version) VALUES ({version})")
        for script in schema_scripts()[:version]:
            for statement in split_statements(script):
                connection.exec_driver_sql(statement)
        connection.exec_driver_sql(
            "INSERT INTO jitter_runs (job, digest, name, added_ns, ranks, steps, document) "
            "VALUES ('gpt', 'old', 'old run', 1, 2, 8, '{}')"
        )
    with closing(Database(location)) as database:
        assert add_run(database, "gpt", document, {"commit": "ab12cd"})
        assert [run.name for run in list_runs(database, "gpt")] == ["old run", document.label]
    with _engine(location).begin() as connection:
        assert connection.exec_driver_sql("SELECT version FROM jitter_history").all() == [(len(schema_scripts()),)]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (2, "2 runs cannot tell a change from the spread between runs: add 3 more."),
        (5, "No change of the step time beyond the spread between runs."),
    ],
)
def test_few_runs_do_not_tell_that_nothing_changed(document, runs, said):
    of_job = [HistoryRun("gpt", str(at), "run", at, 8, 5, 7_000_000 + at, 0.1) for at in range(runs)]
    assert describe_history(of_job, [document] * runs)[0] == said


def test_runs_of_version_1_are_read(location, document):
    with closing(Database(location)) as database:
        assert add_run(database, "gpt", document, {})
    with _engine(location).begin() as connection:
        text = written_by_version_1(document).decode()
        connection.execute(sa.text("UPDATE jitter_runs SET document = :text"), {"text": text})
    with closing(Database(location)) as database:
        (read,) = read_documents(database, list_runs(database, "gpt"))
    assert (read.schema_version, read.steps, read.loss_ns) == (1, document.steps, document.loss_ns)
    assert [one.recurs for one in read.culprits] == [None] * len(document.culprits)
    assert describe_findings(read) == describe_findings(document)


def test_a_newer_database_is_refused(location, capsys):
    with closing(Database(location)) as database, database.transaction() as connection:
        connection.exec_driver_sql("UPDATE jitter_history SET version = 99")
    with pytest.raises(JitterError, match="was written by a newer jitter"):
        Database(location)
    assert main(["history", "list", "--db", location]) == 3
    said = capsys.readouterr().err
    assert "newer jitter" in said
    _tells_no_secret(said)


def _tells_no_secret(text: str) -> None:
    assert not any(secret in text for secret in (USER, PASSWORD, "127.0.0.1"))


@pytest.mark.parametrize("change", ["password", "user", "database", "port"])
def test_messages_tell_no_secret(postgresql_server, change, capsys):
    address = postgresql_server.partition("@")[2]
    urls = {
        "password": f"postgresql://{USER}:{PASSWORD}-wrong@{address}/postgres",
        "user": f"postgresql://{USER}-nobody:{PASSWORD}@{address}/postgres",
        "database": f"{postgresql_server}/nowhere",
        "port": f"postgresql://{USER}:{PASSWORD}@127.0.0.1:1/postgres",
    }
    assert main(["history", "list", "--db", urls[change]]) == 3
    said = capsys.readouterr()
    assert "the PostgreSQL history cannot be used" in said.err
    _tells_no_secret(said.out + said.err)


def test_adding_to_a_server_tells_no_secret(location, lake, capsys):
    assert main(["history", "add", str(lake), "--job", "gpt", "--db", location]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("added lake of job gpt")
    _tells_no_secret(said.out + said.err)


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "http://secret", "postgresql://[secret", "sqlite://"])
def test_other_urls_are_refused(url):
    with pytest.raises(JitterError) as caught:
        Database(url)
    assert "secret" not in str(caught.value)


def test_another_file_is_refused(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 200)
    assert main(["history", "list", "--db", str(path)]) == 3
    assert "cannot be used" in capsys.readouterr().err
    assert path.read_text().startswith("not a database")


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["history", "list", "--db", str(tmp_path / "file" / "history.sqlite")]) == 3
    assert "cannot be" in capsys.readouterr().err


def test_any_sqlite_client_reads_it(tmp_path, document):
    path = tmp_path / "history.sqlite"
    with closing(Database(str(path))) as database:
        add_run(database, "gpt", document, {"commit": "ab12cd"})
    with open_database(path) as connection:
        (row,) = connection.execute("SELECT job, name FROM jitter_runs").fetchall()
    assert row == ("gpt", document.label)


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
    lines = output_of(capsys, "history", "list", "--job", "gpt").splitlines()
    assert len(lines) == 1 + len(FACTORS)
    marked = [line for line in lines if "▲" in line]
    assert len(marked) == 1
    assert "run6" in marked[0]
    assert "commit=c6" in marked[0]


def test_json_keys_are_those_of_the_guide(history, capsys):
    found = json_of(capsys, "history", "list", "--json")
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
    text = output_of(capsys, "history", "show", "--job", "gpt")
    assert "Changed with run6" in text
    assert "slower" in text


@pytest.mark.parametrize("verb", ["show", "list"])
def test_an_unknown_job_is_refused_with_those_that_there_are(verb, history, capsys):
    assert main(["history", verb, "--job", "none"]) == 2
    assert capsys.readouterr().err == "jitter: the history has no job none\n  its jobs: gpt\n"


@pytest.mark.parametrize("width", [80, 300])
def test_the_runs_fit_the_terminal(width, history, monkeypatch, capsys):
    whole = output_of(capsys, "history", "show", "--job", "gpt")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["history", "show", "--job", "gpt"]) == 0
    out, err = capsys.readouterr()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.partition("Changed with")[0]).splitlines()
    assert max(map(len, lines)) <= width
    assert ("columns fit the terminal" in err) == (width == 80)
    assert ("communication" in out, "communication" in whole) == (width == 300, True)
    assert all(re.search(rf"^run{number} ", "\n".join(lines), re.MULTILINE) for number in range(len(FACTORS)))


def test_the_page_has_every_run_and_its_comparison(history, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["history", "show", "--job", "gpt", "--html", str(page)]) == 0
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
    assert check(capsys, lake, "--baseline", "history:gtp") == (
        3,
        "UNKNOWN the history has no job gtp (its jobs: gpt)\n",
    )
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
    shown = open_page(context, page.as_uri())
    assert not shown.evaluate("document.getElementById('run-digest6').open")
    select = "Bokeh.documents.at(-1).get_model_by_name('history:runs').selected.indices = [6]"
    shown.evaluate(select)
    assert shown.evaluate("document.getElementById('run-digest6').open")
    assert shown.errors == []
    context.close()


IMAGES = {128: 118874.19, 256: 219602.73, 512: 388282.87}


def test_a_label_states_the_size_of_a_run_whose_log_does_not(tmp_path, capsys):
    """388,282.87 / 64 is 81.7% of 118,874.19 / 16."""
    base = str(tmp_path / "history.sqlite")
    for ranks, rate in IMAGES.items():
        folder = tmp_path / f"run{ranks}"
        folder.mkdir()
        (folder / "train.log").write_text(f"total images/sec: {rate}\n")
        lake, label = str(folder / "lake"), f"nodes={ranks // 8}"
        assert main(["ingest", str(folder), "-o", lake]) == 0
        assert main(["history", "add", lake, "--job", "cnn", "--label", label, "--db", base]) == 0
    assert "388,283 samples/s on 64 nodes (81.7% per node)." in " ".join(
        output_of(capsys, "history", "show", "--job", "cnn", "--db", base).split()
    )


def test_images_per_second_over_ranks(tmp_path, capsys):
    """219,602.73 / 256 is 92.4% of 118,874.19 / 128; 388,282.87 / 512 is 81.7% of it."""
    base = str(tmp_path / "history.sqlite")
    for ranks, rate in IMAGES.items():
        folder = tmp_path / f"run{ranks}"
        folder.mkdir()
        (folder / "train.log").write_text(f"Total img/sec on {ranks} GPU(s): {rate} +-12.0\n")
        assert main(["ingest", str(folder), "-o", str(folder / "lake")]) == 0
        assert main(["history", "add", str(folder / "lake"), "--job", "cnn", "--name", f"n{ranks}", "--db", base]) == 0
    printed = " ".join(output_of(capsys, "history", "show", "--job", "cnn", "--db", base).split())
    assert (
        "Scaling, by the logs: 118,874 samples/s on 128 ranks, 219,603 samples/s on 256 ranks (92.4% per rank), "
        "388,283 samples/s on 512 ranks (81.7% per rank)."
    ) in printed
