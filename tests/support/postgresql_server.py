"""A PostgreSQL server on the loopback interface, for the time of a test session."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER, PASSWORD = "jitter_team", "hunter2-Secret"


def _binaries() -> Path | None:
    """The folder of initdb and postgres; None if the server is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """Yield the URL of an empty server, without a database: USER may create some, by password only."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (Debian package postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    account: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("there is no user postgres to run the server as")
        if shutil.which("runuser") is None:
            pytest.skip("runuser is not installed: the server cannot run as another user")
        account = ["runuser", "-u", "postgres", "--"]
    with tempfile.TemporaryDirectory(prefix="jitter-pg-") as name:
        folder = Path(name)
        password = folder / "password"
        password.write_text(PASSWORD)
        if account:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            os.chown(password, owner.pw_uid, owner.pw_gid)
        data = folder / "data"
        options = ["-U", USER, "--auth=scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--no-sync"]
        _run([*account, str(binaries / "initdb"), "-D", str(data), *options])
        port = _free_port()
        settings = f"-c listen_addresses=127.0.0.1 -p {port} -k {folder} -c fsync=off"
        control = [*account, str(binaries / "pg_ctl"), "-D", str(data), "-w"]
        _run([*control, "-l", str(folder / "log"), "-o", settings, "start"])
        try:
            yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}"
        finally:
            _run([*control, "-m", "immediate", "stop"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
