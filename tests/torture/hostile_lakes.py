"""A lake from an enemy: links, paths, sizes, numbers, names, a foreign catalog. Nothing beside or above it changes.

Each case changes a good lake in up to three hostile ways and runs one verb. The folders around the lake hold canaries
that look like a lake's own files: they are compared by content, no file of theirs may be opened, and their text may
not be printed. A verb that reads changes nothing in the lake either.
"""

import contextlib
import io
import os
import random
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

import jitter
from jitter.cli import main
from jitter.lake.integrity.checksums import checksum, seal_json
from jitter.simulate import Fault, Job, simulate, write
from tests.torture.figures import Figures
from tests.torture.mutations import time_limit

SLOWEST_S: Final = 60
CANARY: Final = "canary_of_the_reader"
RUN: Final = "node7-0123456789ab-4711-0123456789abcdef"
READERS: Final = (
    ("report",), ("report", "--json"), ("steps",), ("table",), ("table", "--by", "kernel"), ("collectives",),
    ("check", "--max-loss", "99%"), ("verify",), ("query", "select * from kernels"), ("query", "select * from host"),
    ("query", "select * from sources"), ("export", "--csv", "out"), ("report", "--html"), ("compare",),
)  # fmt: skip
LONG_AGO_S: Final = 1_500_000_000
Change = Callable[["Enemy"], str]


class Enemy:
    """One case: the lake to change, and the chance that decides how."""

    def __init__(self, root: Path, outside: Path, chance: random.Random) -> None:
        self.root = root
        self.outside = outside
        self.chance = chance

    def files(self, pattern: str) -> list[Path]:
        """Files of the lake, not behind links."""
        found = (path for path in self.root.glob(pattern) if path.is_file() and not path.is_symlink())
        return sorted(path for path in found if path.stat().st_size < 1 << 20)

    def evil_path(self) -> str:
        """A path that leads out of the lake, or nowhere."""
        targets = [*self.outside.rglob("*"), self.outside, Path("/etc/passwd"), Path("/dev/zero"), Path("/nonexistent")]
        target = self.chance.choice(sorted(targets))
        forms = str(target), os.path.relpath(target, self.root), f"kernels/../{os.path.relpath(target, self.root)}"
        return self.chance.choice(forms)

    def evil_text(self) -> str:
        choices = (
            self.evil_path(), "", "..", "/", "\x1b]0;owned\x07\x1b[2J", "\x9b31m", "=cmd|'/c calc'!A1", "<b>", "\n",
            "a" * 100_000, "\ud7ff\U0010ffff", "'; DROP TABLE x; --", "%s%n", "{0}", "${HOME}", "\x00",
        )  # fmt: skip
        return self.chance.choice(choices)

    def evil_number(self) -> int:
        powers = [sign * 2**power + more for sign in (1, -1) for power in (31, 40, 62, 63) for more in (-1, 0, 1)]
        return self.chance.choice((*powers, -1, 0, 1, 7, 12, 10**18, 999_999_999, self.chance.randrange(2**20)))

    def evil_value(self) -> Any:
        kinds = (self.evil_text, self.evil_number, lambda: self.chance.choice((None, 1e308, [], {}, True)))
        return self.chance.choice(kinds)()


def link_entry(enemy: Enemy) -> str:
    """Put a link in the place of a file or folder."""
    names = (".staging", "derived", "sources", "kernels", "host", "times", "logs", "catalog.sqlite", "jitter.json")
    below = [*enemy.root.rglob("*")]
    path = enemy.chance.choice(below) if enemy.chance.random() < 0.6 else enemy.root / enemy.chance.choice(names)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(enemy.evil_path() or "x")
    return "link"


def add_special(enemy: Enemy) -> str:
    """Put a pipe or a socket in the place of a file."""
    path = enemy.chance.choice(enemy.files("**/*"))
    path.unlink()
    if enemy.chance.random() < 0.7:
        os.mkfifo(path)
    else:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))
    return "pipe or socket"


def leave_run(enemy: Enemy) -> str:
    """Leave a run that looks dead, with a journal of files elsewhere, and perhaps a lock."""
    name = enemy.chance.choice((RUN, "..", "x", "node7", f"{RUN}.old", "a-0123456789ab-1-0123456789abcdef"))
    run = enemy.root / ".staging" / name
    run.mkdir(parents=True, exist_ok=True)
    places: Any = [enemy.evil_path() for _ in range(4)] + [
        str(path.relative_to(enemy.root)) for path in enemy.files("kernels/**/*")[:1]
    ]
    places = enemy.chance.choice((places, [places], {"a": places}, [*places, 3], "x", None))
    content = msgspec.json.encode(places) if enemy.chance.random() < 0.9 else b"[" * 100_000
    (run / "places.json").write_bytes(content)
    if enemy.chance.random() < 0.4:
        (enemy.root / ".staging/numbering").write_text(enemy.chance.choice((RUN, enemy.evil_path(), "", "\x00")))
    for path in (run / "places.json", run):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return "dead run"


def change_record(enemy: Enemy) -> str:
    """Put hostile values into a sealed record."""
    path = enemy.chance.choice(enemy.files("sources/*.json") + enemy.files("logs/records/*.json"))
    record = msgspec.json.decode(path.read_bytes())
    record.pop("checksum", None)
    for _ in range(enemy.chance.randint(1, 3)):
        steps = record.get("steps") or [record]
        target = enemy.chance.choice((record, record, enemy.chance.choice(steps)))
        name = enemy.chance.choice(sorted(target))
        if name == "steps" and enemy.chance.random() < 0.5:
            record["steps"] = record["steps"] * enemy.chance.choice((0, 2, 50))
        elif name in ("checksums", "relations", "formats"):
            target[name] = {enemy.evil_text() or "x": enemy.evil_value() for _ in range(2)}
        elif name == "digest" or enemy.chance.random() < 0.2:
            target["digest" if target is record else name] = enemy.evil_path()
        else:
            old = target[name]
            evil = enemy.evil_number if type(old) is int else enemy.evil_text if type(old) is str else enemy.evil_value
            target[name] = evil()
    if enemy.chance.random() < 0.3:  # as an older version wrote it: without checksums of its files
        record["record_version"] = 1
        for step in record.get("steps") or ():
            if isinstance(step, dict):
                step["checksum"] = None
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    written = path if enemy.chance.random() < 0.8 else path.with_name(f"{enemy.chance.randbytes(16).hex()}.json")
    written.write_bytes(seal_json(text))
    return "record"


def change_rows(enemy: Enemy) -> str:
    """Put hostile rows into a parquet file, and its checksum into the record."""
    path = enemy.chance.choice(
        enemy.files("kernels/**/*.parquet") + enemy.files("host/**/*") + enemy.files("logs/**/*.parquet")
    )
    rows = pq.ParquetFile(path).read()
    for _ in range(enemy.chance.randint(1, 3)):
        at = enemy.chance.randrange(rows.num_columns)
        name, column = rows.schema.names[at], rows.column(at)
        kind = enemy.chance.choice(("null", "type", "extreme", "text", "absent", "list"))
        if kind == "null":
            rows = rows.set_column(at, name, pa.nulls(rows.num_rows, column.type))
        elif kind == "type":
            rows = rows.set_column(at, name, pa.array([enemy.evil_text() for _ in range(rows.num_rows)]))
        elif kind == "extreme" and pa.types.is_integer(column.type):
            bits = column.type.bit_width
            limits = (-(1 << bits - 1), (1 << bits - 1) - 1, 0, -1)
            values = [enemy.chance.choice(limits) if enemy.chance.random() < 0.5 else one for one in column.to_pylist()]
            rows = rows.set_column(at, name, pa.array(values, column.type))
        elif kind == "text" and pa.types.is_string(column.type):
            rows = rows.set_column(at, name, pa.array([enemy.evil_text() for _ in range(rows.num_rows)]))
        elif kind == "absent" and rows.num_columns > 1:
            rows = rows.drop_columns([name])
        elif kind == "list":
            rows = rows.set_column(at, name, pa.array([[1] * 3] * rows.num_rows))
    if enemy.chance.random() < 0.2:
        rows = pa.concat_tables([rows.slice(0, 1)] * enemy.chance.choice((0, 3, 50_000)) or [rows.slice(0, 0)])
    pq.write_table(rows, path)
    _record_checksum(enemy, path, rows.num_rows)
    return "rows"


def _record_checksum(enemy: Enemy, path: Path, count: int) -> None:
    """State a changed file's checksum and rows in the record that it belongs to, as an enemy would."""
    found = checksum(path.read_bytes())
    for file in enemy.files("sources/*.json") + enemy.files("logs/records/*.json"):
        record = msgspec.json.decode(file.read_bytes())
        if not isinstance(record, dict) or record.pop("checksum", None) is None:
            continue
        if path.parts[-2] == "logs" or "relations" in record:
            if record.get("digest") == path.stem:
                record["checksums"] = {**record.get("checksums", {}), path.parent.name: found}
        elif record.get("digest") == path.stem:
            record["host_checksum"] = found
        elif path.name == f"rank={record.get('rank')}.parquet":
            for step in record.get("steps", ()):
                if isinstance(step, dict) and path.parent.name == f"step={step.get('step')}":
                    step["checksum"] = found
                    step["kernels"], step["memory_activities"] = count, 0
        file.write_bytes(seal_json(msgspec.json.format(msgspec.json.encode(record), indent=1)))


def change_catalog(enemy: Enemy) -> str:
    """Replace the catalog by another database, or by no database."""
    path = enemy.root / "catalog.sqlite"
    if path.is_symlink() or not path.is_file():
        return "nothing"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    scripts = (
        f"DROP TABLE state; CREATE VIEW state AS {endless} i AS made_from FROM n",
        f"ALTER TABLE sources RENAME TO old; CREATE VIEW sources AS {endless} * FROM n, old",
        "CREATE TRIGGER t AFTER INSERT ON state BEGIN DELETE FROM sources; END",
        "CREATE VIRTUAL TABLE f USING fts5(x)",
        "CREATE TABLE g (made_from TEXT GENERATED ALWAYS AS (hex(zeroblob(500000000)))); DROP TABLE state;"
        "ALTER TABLE g RENAME TO state",
        "PRAGMA journal_mode = WAL",
    )  # fmt: skip
    choice = enemy.chance.randrange(len(scripts) + 3)
    if choice < len(scripts):
        with contextlib.closing(sqlite3.connect(path)) as db, contextlib.suppress(sqlite3.Error):
            db.executescript(scripts[choice])
            db.commit()
    elif choice == len(scripts):
        path.write_bytes(b"SQLite format 3\x00" + enemy.chance.randbytes(4000))
    elif choice == len(scripts) + 1:
        path.unlink()
        (path / "folder").mkdir(parents=True)
    else:
        path.write_bytes(b"")
        os.truncate(path, 1 << 40)
    return "catalog"


def change_mark(enemy: Enemy) -> str:
    """Put something else into the file that marks a lake."""
    evil = (b"", b"[" * 200_000, b'{"layout_version": 1e999}', b'{"layout_version": "../.."}', b"\x00" * 10)
    number = msgspec.json.encode({"layout_version": enemy.evil_number()})
    (enemy.root / "jitter.json").unlink(missing_ok=True)
    (enemy.root / "jitter.json").write_bytes(enemy.chance.choice((*evil, number)))
    return "mark"


def grow_file(enemy: Enemy) -> str:
    """Make a file a terabyte of zeros."""
    path = enemy.chance.choice(enemy.files("**/*"))
    with contextlib.suppress(OSError):
        os.truncate(path, 1 << 40)
    return "terabyte"


def add_names(enemy: Enemy) -> str:
    """Add files and folders whose names lie."""
    names = (
        "kernels/step=../rank=0.parquet", "kernels/step=99999999999999999999/rank=0.parquet",
        "sources/..json", "sources/\x1b[2J.json", "derived/answers/x.json", "derived/compact/step=2000/x.y.parquet",
        "logs/records/..json", "kernels/epoch=x/step=1/rank=0.parquet", "derived/timings/x.arrow", "host/rank=-1/a",
    )  # fmt: skip
    path = enemy.root / enemy.chance.choice(names).replace("/..", "/_..")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(enemy.chance.choice((b"", b"{}", b"PAR1", enemy.chance.randbytes(100))))
    return "name"


CHANGES: Final[tuple[Change, ...]] = (
    link_entry, add_special, leave_run, leave_run, change_record, change_record, change_record, change_rows,
    change_rows, change_catalog, change_mark, grow_file, add_names,
)  # fmt: skip


def attack(cases: int, seed: int) -> Figures:
    """Run verbs on `cases` hostile lakes."""
    figures = Figures("lakes of an enemy")
    with tempfile.TemporaryDirectory() as folder:
        good, place = Path(folder, "good"), Path(folder, "place")
        _make_good(good)
        for case in range(cases):
            chance = random.Random(f"{seed} {case}")
            outcome, failure = _attack_once(good, place, chance)
            figures.count(outcome, None if failure is None else f"case {seed} {case}: {failure}")
    return figures


def _make_good(good: Path) -> None:
    faults = [Fault.parse("cpu_stall:rank=2,step=2001,kernel=7,ms=1.5")]
    job = Job(ranks=3, steps=2, kernels=16, first_step=2000, seed=7)
    write(simulate(job, faults), good / "in", "nsys")
    (good / "in/nccl.log").write_text("# nThread 1 nGpus 1\nnode1:12:34 [0] NCCL INFO NET/IB : No device found.\n")
    jitter.ingest([good / "in"], good / "lake", executor=jitter.LocalExecutor())
    jitter.open(good / "lake").prepare()


def _attack_once(good: Path, place: Path, chance: random.Random) -> tuple[str, str | None]:
    shutil.rmtree(place, ignore_errors=True)
    outside = place / "outside"
    _plant_canaries(outside)
    root = outside / "home/lake"
    shutil.copytree(good / "lake", root)
    enemy = Enemy(root, outside, chance)
    done = []
    for _ in range(chance.randint(1, 3)):
        with contextlib.suppress(
            OSError, ValueError, IndexError, KeyError, TypeError
        ):  # an earlier change is in its way
            done.append(chance.choice(CHANGES)(enemy))
    words = _command(chance, root, good)
    before = _snapshot(outside, root)  # now: a name may be added behind a link
    lake_before = _snapshot(root, None)
    opened, printed = set[str](), io.StringIO()
    run = place / "run"
    run.mkdir()
    try:
        with time_limit(SLOWEST_S), _watch(outside, root, opened), contextlib.chdir(run):
            code = _run([str(word) for word in words], printed)
    except TimeoutError:
        return f"{words[0]}: too long", f"{done} {words}"
    what = f"{words[0]}: exit {code}"
    text = printed.getvalue()
    if code not in (0, 1, 2, 3):
        return what, f"{done} {words}: {text[-600:]}"
    if opened:
        return what, f"{done} {words}: read {sorted(opened)[:3]}"
    if CANARY in text or any(CANARY.encode() in path.read_bytes() for path in run.rglob("*") if path.is_file()):
        return what, f"{done} {words}: printed what lies outside"
    if any(one in text for one in ("\x1b", "\x9b", "\x07")):
        return what, f"{done} {words}: printed control characters"
    if _snapshot(outside, root) != before:
        return what, f"{done} {words}: changed what lies outside"
    if words[0] != "ingest" and _snapshot(root, None) != lake_before:
        return what, f"{done} {words}: a reader changed the lake"
    return what, None


def _command(chance: random.Random, root: Path, good: Path) -> list[object]:
    kind = chance.random()
    if kind < 0.25:
        more = chance.choice(([], ["--replace"], ["--replace"]))
        return ["ingest", good / "in", "-o", root, "--jobs", "1", "--quiet", *more]
    verb, *more = chance.choice(READERS)
    if verb == "compare":
        return [verb, good / "lake", root]
    return [verb, root, *more]


def _run(words: list[str], printed: io.StringIO) -> int:
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        return main(words)


def _plant_canaries(outside: Path) -> None:
    """Put files around the lake that look like its own, old enough to look forgotten."""
    folders = (".", "home", "home/kernels/step=2000", "home/sources", RUN, f"home/{RUN}", "derived/timings", "empty")
    for name in folders:
        folder = outside / name
        folder.mkdir(parents=True, exist_ok=True)
        if name != "empty":
            for file in ("rank=0.parquet", "report.json", "places.json", "0" * 32 + ".json", "cache.arrow"):
                (folder / file).write_text(f'["{CANARY}"]')
    for path in sorted(outside.rglob("*"), reverse=True):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))


def _snapshot(folder: Path, leaving_out: Path | None) -> dict[str, object]:
    """Path → content of everything below a folder."""
    found: dict[str, object] = {}
    for name, folders, files in os.walk(folder):
        if leaving_out is not None and Path(name) == leaving_out:
            folders.clear()
            continue
        for path in (Path(name, one) for one in (*files, *folders)):
            if path.is_symlink():
                found[str(path)] = path.readlink()
            elif path.is_file() and path.stat().st_size < 1 << 30:
                found[str(path)] = xxhash.xxh3_64_hexdigest(path.read_bytes())
            else:
                found[str(path)] = path.stat().st_mode
    return found


_watched: list[tuple[str, str, set[str]]] = []


@contextlib.contextmanager
def _watch(outside: Path, root: Path, opened: set[str]) -> Iterator[None]:
    """Collect the files outside the lake that Python opens, removes or renames while the block lasts."""
    _watched.append((f"{outside}/", f"{root}/", opened))
    try:
        yield
    finally:
        _watched.clear()


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watched and event in ("open", "os.remove", "os.rename", "shutil.rmtree", "sqlite3.connect") and arguments:
        outside, root, opened = _watched[0]
        if event == "open" and isinstance(arguments[-1], int) and arguments[-1] & os.O_NOFOLLOW:
            return
        path = os.path.realpath(os.fsdecode(arguments[0])) if isinstance(arguments[0], str | bytes) else ""
        if path.startswith(outside) and not f"{path}/".startswith(root):
            opened.add(f"{event} {path}")


sys.addaudithook(_audit)
