"""The database of the history: schema, versions, several writers, and messages that tell no secret."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from jitter.cli import main
from jitter.core.errors import JitterError
from jitter.history.database import Database, schema_scripts, split_statements
from jitter.history.runs import add_run, list_runs, read_documents
from jitter.report.runs.history_text import describe_findings
from tests.history.conftest import scaled
from tests.support.postgresql_server import PASSWORD, USER
from tests.support.version_1_baseline import written_by_version_1


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
    with closing(sqlite3.connect(path)) as connection:
        (row,) = connection.execute("SELECT job, name FROM jitter_runs").fetchall()
    assert row == ("gpt", document.label)
