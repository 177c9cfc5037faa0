"""Power cuts: whatever of an ingest had reached the disk, the next ingest gives the same lake."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import jitter
from jitter.cli import main
from jitter.core import durability
from jitter.core.errors import LakeError
from jitter.simulate import Fault, Job, simulate, write
from tests.support.fuzz_depth import fuzz, of_all, some_of
from tests.support.lake_content import content
from tests.support.power_cut import POWER_CUTS, Tree, WriteLog, after_power_cut, mixed_cut, write_log, write_tree


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    job = Job(ranks=2, steps=2, kernels=8, seed=5)
    write(simulate(job, [Fault.parse("cpu_stall:rank=1,step=1,kernel=4,ms=2")]), folder, "nsys")
    return folder


def primary(lake: Path) -> dict[str, Any]:
    """The content of a lake without derived data and what runs of another machine may still need."""
    found = content(lake)
    return {name: value for name, value in found.items() if not name.startswith(("derived/", ".staging/"))}


def trees(log: WriteLog, mixed: int) -> Iterator[tuple[str, Tree]]:
    """Every different folder that a power cut leaves; of staging folders only the journal, which other runs read."""
    seen = set()
    for length in range(len(log) + 1):
        for cut in (*POWER_CUTS, *(mixed_cut(mixed * length + number) for number in range(mixed))):
            found = after_power_cut(log, length, cut).items()
            tree = {
                path: at for path, at in found if ".staging" not in path.parts or at is None or path.stem == "places"
            }
            key = hashlib.blake2b(repr(sorted(tree.items())).encode()).digest()
            if key not in seen:
                seen.add(key)
                yield f"{cut.name} after change {length}", tree


def run(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def forget_runs(lake: Path) -> None:
    """Let runs in a lake be those of an earlier boot that nothing has changed for long."""
    for run_folder in lake.glob(".staging/*"):
        host, _, pid, token = run_folder.name.rsplit("-", 3)
        left = run_folder.rename(run_folder.with_name(f"{host}-{12 * '0'}-{pid}-{token}"))
        for path in (*left.iterdir(), left):
            os.utime(path, (0, 0))


class Answers:
    """The report of each part of the recordings, from a lake that was never disturbed."""

    def __init__(self, folder: Path) -> None:
        self.of = cache(partial(self._ask, folder))

    @staticmethod
    def _ask(folder: Path, held: frozenset[tuple[str, int]]) -> dict[str, Any]:
        lake = folder / hashlib.blake2b(repr(sorted(held)).encode(), digest_size=4).hexdigest()
        for file, rank in sorted(held, key=lambda one: one[1]):
            jitter.ingest([file], lake, rank=rank)
        code, out, _ = run("report", lake, "--json")
        assert code == 0
        return _without_notes(json.loads(out))


def _without_notes(report: dict[str, Any]) -> dict[str, Any]:
    for name in ("warnings", "outside_steps"):  # the latter counts recordings that lost their steps to others, too
        report["run"].pop(name)
    return report


def check_report(lake: Path, answers: Answers) -> str:
    """A report answers for what the records hold, as if nothing else had been recorded, or says what is damaged."""
    code, out, err = run("report", lake, "--json")
    if code == 3:
        assert err.startswith(("jitter: ", "no traces in "))
        return "refused"
    assert code == 0, err
    held = frozenset((record.file, record.rank) for record in jitter.open(lake).sources if record.steps)
    assert _without_notes(json.loads(out)) == answers.of(held)
    return "answered"


def check_every_cut(
    log: WriteLog, again: Callable[[Path], object], whole: dict[str, Any], folder: Path, mixed: int, answers: Answers
) -> dict[str, int]:
    outcomes: dict[str, int] = {}
    for name, tree in islice(trees(log, mixed), 0, None, of_all(1, 20)):
        place = folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        write_tree(tree, place)
        forget_runs(place / "lake")
        outcome = check_report(place / "lake", answers) if (place / "lake").exists() else "nothing"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        again(place / "lake")
        assert primary(place / "lake") == whole, name
    return outcomes


@fuzz
@pytest.mark.slow
def test_an_ingest_again_gives_the_same_lake(recordings: Path, tmp_path: Path):
    place = tmp_path / "first"
    place.mkdir()
    with write_log(place) as log:
        jitter.ingest([recordings], place / "lake")
    again = partial(jitter.ingest, [recordings])
    answers = Answers(tmp_path)
    outcomes = check_every_cut(log, again, primary(place / "lake"), tmp_path, 1, answers)
    assert outcomes["answered"] > of_all(5, 1)
    # what is said to be in the lake is there
    assert primary_of(after_power_cut(log, len(log), POWER_CUTS[0]), tmp_path / "end") == primary(place / "lake")


def primary_of(tree: Tree, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    write_tree(tree, folder)
    shutil.rmtree(folder / "lake" / ".staging", ignore_errors=True)
    found = primary(folder / "lake")
    found.setdefault("catalog.sqlite", primary(folder.parent / "first" / "lake")["catalog.sqlite"])
    return found


@fuzz
@pytest.mark.slow
def test_another_reading_replaces_the_first_or_not(recordings: Path, tmp_path: Path):
    """The second reading's files take the place of the first's: no record may name both."""
    ranks = tmp_path / "map.csv"
    ranks.write_text("rank0.sqlite,1\nrank1.sqlite,5\n")
    place = tmp_path / "first"
    place.mkdir()
    jitter.ingest([recordings], place / "lake")
    read_again = partial(jitter.ingest, [recordings], rank_map=ranks, replace=True)
    with write_log(place) as log:
        read_again(place / "lake")
    check_every_cut(log, read_again, primary(place / "lake"), tmp_path, 1, Answers(tmp_path))


@fuzz
@pytest.mark.slow
def test_logs(recordings: Path, tmp_path: Path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "clocks.csv").write_text(
        "timestamp, index, clocks.sm [MHz], power.draw [W], temperature.gpu\n"
        "2025/01/01 00:00:00.000, 0, 1980 MHz, 600.00 W, 60\n"
    )
    jitter.ingest([recordings / "rank0.sqlite"], tmp_path / "first" / "lake")
    with write_log(tmp_path / "first") as log:
        report = jitter.ingest([logs], tmp_path / "first" / "lake")
    assert len(report.logs.added) == 1
    again = partial(jitter.ingest, [logs])
    check_every_cut(log, again, primary(tmp_path / "first" / "lake"), tmp_path, 1, Answers(tmp_path))


@fuzz
@pytest.mark.slow
def test_without_a_sync_of_the_file_system_files_are_synced(recordings: Path, tmp_path: Path):
    """As on systems other than Linux: each state that syncs file by file allows is in order too."""
    place = tmp_path / "first"
    place.mkdir()
    with write_log(place) as log, patch.object(durability, "sync_file_system", lambda folder: False):
        jitter.ingest([recordings / "rank0.sqlite"], place / "lake")
    again = partial(jitter.ingest, [recordings / "rank0.sqlite"])
    check_every_cut(log, again, primary(place / "lake"), tmp_path, 1, Answers(tmp_path))
    left = primary_of(after_power_cut(log, len(log), POWER_CUTS[0]), tmp_path / "end")
    assert left == primary(place / "lake")


@pytest.fixture
def lake(recordings: Path, tmp_path: Path) -> Path:
    jitter.ingest([recordings], tmp_path / "lake")
    return tmp_path / "lake"


@fuzz
@pytest.mark.parametrize(
    ("is_old", "part", "damage"),
    [
        *some_of(product([False, True], ["kernels", "host"], ["missing", "empty", "zeroed", "torn", "short"]), 3),
        (False, "kernels", "longer"),  # and begins and ends as it should
    ],
)
def test_what_a_record_names_and_is_not_there_is_read_again(
    recordings: Path, lake: Path, damage: str, part: str, is_old: bool
):
    """Of a lake of a version that waited for nothing; records of that version state no sizes."""
    if is_old:
        _remove_sizes(lake)
    whole = primary(lake)
    path = sorted((lake / part).rglob("*.parquet"))[1]
    old = path.read_bytes()
    new = {
        "empty": b"",
        "zeroed": bytes(len(old)),
        "torn": old[:90] + bytes(len(old) - 90),
        "short": old[:90],
        "longer": old + old,
    }
    path.unlink()
    if damage != "missing":
        path.write_bytes(new[damage])
    report = jitter.ingest([recordings], lake)
    assert (len(report.added), report.unchanged) == (1, 1)
    assert any(f"read again, because {path} is missing or cut" in text for text in report.warnings)
    assert jitter.ingest([recordings], lake).unchanged == 2
    after = primary(lake)
    assert after[path.relative_to(lake).as_posix()] == whole[path.relative_to(lake).as_posix()]
    assert after.keys() == whole.keys()


def _remove_sizes(lake: Path) -> None:
    from jitter.lake.integrity.checksums import seal_json

    for path in (lake / "sources").iterdir():
        record = json.loads(path.read_bytes())
        for one in (record, *record["steps"]):
            one.pop("host_size" if one is record else "size")
            one.pop("checksum") if one is record else None
        path.write_bytes(seal_json(json.dumps(record, indent=1).encode()))


@pytest.mark.parametrize("mark", [None, b"", bytes(20), b'{"layout_ver', b'{"layout": 1}'])
def test_a_lost_mark_is_written_again(recordings: Path, lake: Path, mark: bytes | None, capsys):
    path = lake / "jitter.json"
    before = path.read_bytes()
    path.unlink()
    if mark is not None:
        path.write_bytes(mark)
    assert main(["report", str(lake)]) == 0
    assert jitter.ingest([recordings], lake).unchanged == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "there", [{"jitter.json": "{}", "notes": ""}, {"jitter.json": '{"mine": 1}'}, {"sources/x.json": "{}"}]
)
def test_a_folder_of_something_else_gets_no_mark(recordings: Path, there: dict[str, str], tmp_path: Path):
    folder = tmp_path / "mine"
    for name, text in there.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(LakeError, match="no lake of jitter's"):
        jitter.ingest([recordings], folder)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == there.keys()
