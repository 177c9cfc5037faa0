"""Real traces against an oracle that reads the same file. They lie where JITTER_TRACES says."""

import gzip
import zlib
from pathlib import Path

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.readers import readers
from jitter.readers.kineto import READER
from tests.support.kineto_traces import as_read, events_in, expected, read
from tests.support.real_recordings import TRACES, needs_traces

KINETO = sorted((TRACES / "kineto").rglob("*.json.gz"))
OTHERS = [path for path in sorted(TRACES.rglob("*.json*")) if path not in KINETO]
LARGE = 30_000_000

pytestmark = needs_traces


def content_of(path: Path) -> bytes:
    return zlib.decompressobj(31).decompress(path.read_bytes())


@pytest.mark.parametrize("path", KINETO, ids=lambda path: path.name)
def test_against_the_oracle(path: Path, tmp_path: Path) -> None:
    assert READER.sniff(path)
    content = content_of(path)
    if path.parent.name == "malformed":
        pytest.skip("has its own test")
    whole = expected(events_in(content))
    if not whole["activities"]:
        with pytest.raises(UnreadableTraceError, match="no GPU activity"):
            read(path)
        return
    recording, rows = read(path)
    assert as_read(recording, rows) == whole
    assert recording.problems == []
    if len(content) < LARGE:
        (tmp_path / "t.json").write_bytes(content)
        assert as_read(*read(tmp_path / "t.json", 5_000)) == whole


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_others_are_not_claimed(path: Path) -> None:
    assert not READER.sniff(path)


@pytest.mark.parametrize("path", KINETO, ids=lambda path: path.name)
def test_no_other_reader_claims_them(path: Path) -> None:
    assert [name for name, reader in readers().items() if reader.sniff(path)] == ["kineto"]


def named(name: str) -> Path:
    return next(path for path in KINETO if path.name == name)


def test_control_characters() -> None:
    path = named("ctrl_char_in_name.json.gz")
    recording, rows = read(path)
    assert as_read(recording, rows) == expected(events_in(content_of(path)))
    assert recording.problems == []


def test_an_unescaped_quote() -> None:
    recording, rows = read(named("unescaped_quote.json.gz"))
    content = content_of(named("unescaped_quote.json.gz"))
    mended = expected(events_in(content.replace(b'voi"x"d', b"void")))
    lost = mended["activities"] - as_read(recording, rows)["activities"]
    assert lost.total() == 1
    (problem,) = recording.problems
    assert f"byte {content.index(b'voi' + bytes([34, 120, 34])) + 3:,} (unescaped quote)" in problem


@pytest.mark.parametrize("name", ["truncated_60pct.json.gz", "truncated_plain.json.gz"])
def test_cut_before_the_first_gpu_activity(name: str) -> None:
    content = content_of(named(name))
    events = content[: content.rindex(b"},\n  {") + 1] + b"]}"
    with pytest.raises(UnreadableTraceError, match=f"{len(events_in(events)):,} complete events were read"):
        read(named(name))


def test_cut_at_the_end(tmp_path: Path) -> None:
    content = content_of(named("resnet_act_checkpoint.json.gz"))
    cut = content[: len(content) * 98 // 100]
    kept = expected(events_in(cut[: cut.rindex(b"},\n  {") + 1] + b"]}"))
    assert kept["activities"].total() > 1000
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(cut, 1))
    recording, rows = read(path)
    assert as_read(recording, rows) == kept
    assert "complete events were read" in recording.problems[0]


def test_ranks_clocks_and_collectives() -> None:
    for rank in range(4):
        recording, rows = read(TRACES / "kineto" / "amd-4rank" / f"rank-{rank}.json.gz")
        assert [process.rank for process in recording.processes] == [rank]
        told = [row for row in rows["activities"] if row["collective"]]
        assert len(told) == 21
        assert {row["collective"] for row in told} == {"all_reduce", "broadcast"}
        assert {tuple(row["group_ranks"]) for row in told} == {(0, 1, 2, 3)}
        assert {row["stream"] for row in rows["activities"]} == {0, 4}
    recording, rows = read(named("b200_eager_trace.json.gz"))
    (gather,) = [row for row in rows["activities"] if row.get("collective")]
    assert (gather["collective"], gather["message_bytes"], gather["group_name"]) == ("all_gather", 2 * 25136, "3")
    assert recording.profiler_version == "Kineto schema 1, CUPTI 28"
