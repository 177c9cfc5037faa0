"""Traces that were cut, or damaged: what can be read is, and the loss is told."""

import gzip
import json
from pathlib import Path

import pytest

from jitter.core.errors import UnreadableTraceError
from tests.support.fuzz_depth import fuzz, of_all
from tests.support.kineto_traces import (
    as_read,
    call,
    expected,
    is_within,
    kernel,
    operator,
    parsed,
    read,
    small,
    step,
    text,
    write,
)

pytestmark = pytest.mark.slow

EVENTS = [*small(4), operator("nested", x=[{"a": 1}, {"b": 2}]), kernel("},{", ts=900, correlation=9)]
ABOUT = {"distributedInfo": {"rank": 5}, "baseTimeNanoseconds": 10**18}


def complete_before(content: bytes, cut: int) -> int:
    """How many events end at or before `cut`, by scanning the text with a JSON decoder of one value at a time."""
    words = content.decode()
    at, count = words.index("[", words.index('"traceEvents"')) + 1, 0
    decoder = json.JSONDecoder()
    while True:
        at += len(words[at:]) - len(words[at:].lstrip(" ,\n"))
        if words[at] == "]":
            return count
        _, at = decoder.raw_decode(words, at)
        if at > cut:
            return count
        count += 1


def one(tmp_path: Path, content: bytes, piece: int = 256 * 1024):
    return read(write(tmp_path / "t.json", content), piece)


@fuzz
@pytest.mark.parametrize("indent", [None, 1])
def test_cut_at_every_byte(tmp_path: Path, indent: int | None) -> None:
    content = text(EVENTS, before=ABOUT, indent=indent)
    begin = content.index(b"[") + 1
    end = content.rindex(b"]") + 1
    for cut in range(0, len(content), of_all(1, 11) if indent is None else of_all(3, 29)):
        path = write(tmp_path / "t.json", content[:cut])
        count = complete_before(content, cut) if cut >= begin else 0
        kept = expected(EVENTS[:count])
        if not kept["activities"]:
            with pytest.raises(UnreadableTraceError, match=r"no list of trace events|no GPU activity"):
                read(path)
            continue
        recording, rows = read(path)
        assert as_read(recording, rows) == kept
        told = " ".join(recording.problems)
        if cut < end:
            assert f"the trace is cut: {count} complete events were read" in told
            unfinished = len(content[:cut]) - int(told.split("to byte ")[1].split(" ")[0].replace(",", ""))
            assert (f"1 unfinished event of {unfinished:,} bytes is lost" in told) == ("1 unfinished" in told)
        else:
            assert "all events are complete, but the members after them are cut" in told
        assert recording.processes[0].rank == 5


@fuzz
@pytest.mark.parametrize("piece", [50, 100_000])
def test_gzip_cut_at_every_byte(tmp_path: Path, piece: int) -> None:
    zipped = gzip.compress(text(EVENTS, before=ABOUT), 1)
    whole = expected(EVENTS)
    read_some = 0
    for cut in range(0, len(zipped), of_all(3, 11)):
        path = tmp_path / "t.gz"
        path.write_bytes(zipped[:cut])
        try:
            recording, rows = read(path, piece)
        except UnreadableTraceError:
            continue
        read_some += 1
        assert is_within(as_read(recording, rows), whole)
        assert any("gzip data stops without an end" in problem for problem in recording.problems)
    assert read_some > 0


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_damaged_gzip_keeps_what_came_before(tmp_path: Path, at: float) -> None:
    events = [kernel(f"kernel_{k * k}", ts=k, correlation=k) for k in range(8_000)]
    zipped = bytearray(gzip.compress(text(events)))
    for k in range(20):
        zipped[int(len(zipped) * at) + k] ^= 0x5A
    path = tmp_path / "t.json"
    path.write_bytes(zipped)
    recording, rows = read(path)
    assert len(rows["activities"]) > 8_000 * at * 0.6
    assert recording.problems


@pytest.mark.parametrize("piece", [40, 100_000])
@pytest.mark.parametrize("bad", [0, 1, 5, 13])
def test_an_unescaped_quote(tmp_path: Path, bad: int, piece: int) -> None:
    events = json.loads(json.dumps(EVENTS))
    events[bad]["name"] = 'voi"x"d}, {'
    content = text(events, after=ABOUT).replace(rb"voi\"x\"d", b'voi"x"d')
    recording, rows = one(tmp_path, content, piece)
    assert as_read(recording, rows) == expected([event for event in EVENTS if event is not EVENTS[bad]])
    (problem,) = recording.problems
    assert f"damaged at byte {content.index(b'voi') + 3:,} (unescaped quote)" in problem
    assert f"at least 1 event; the other {len(EVENTS) - 1} were read" in problem
    assert recording.processes[0].rank == 5


@pytest.mark.parametrize("piece", [40, 100_000])
def test_control_characters_stay_in_names(tmp_path: Path, piece: int) -> None:
    content = text(EVENTS).replace(b"kernel_1", b"ker\x01n\nel\t_\x00\x1f1").replace(b"aten", b"at\x02en")
    recording, rows = one(tmp_path, content, piece)
    assert as_read(recording, rows) == expected(parsed(content)["traceEvents"])
    assert "ker\x01n\nel\t_\x00\x1f1<a, b>" in recording.names
    assert recording.problems == []


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-nan", "inf", "-inf"])
@pytest.mark.parametrize("piece", [60, 100_000])
def test_no_numbers(tmp_path: Path, word: str, piece: int) -> None:
    events = [kernel(f"k: {word}, {k}", ts=k, bandwidth="@", list=["@", 1, "@"]) for k in range(30)]
    content = text([*events, kernel("no time", ts="@")]).replace(b'"@"', word.encode())
    recording, rows = one(tmp_path, content, piece)
    assert as_read(recording, rows) == expected(events)
    assert recording.problems == ["1 GPU activities without a possible time were left out"]


@pytest.mark.parametrize(
    ("damage", "instead", "lost"),
    [
        (b'"kernel_1<a, b>"', b'"kernel_1<a, b>', 1),
        (b'"kernel_1<a, b>"', b"kernel_1", 1),
        (b'"grid": [1, 1, 1]', b'"grid": [[1, 1, 1]', 1),
        (b'"grid": [1, 1, 1]', b'"grid": {1, 1, 1]', 1),
        (b'"grid": [1, 1, 1]', b'"grid": [1, 1, 1', 1),
        (b'"grid": [1, 1, 1], "block": [32, 2, 1]}}', b'"grid": [1, 1, 1], "block": [32, 2, 1]}', 2),
        (b'"grid": [1, 1, 1], "block": [32, 2, 1]}}', b'"grid": [1, 1, 1], "block": [32, 2, 1]}}}', 0),
        (b'"grid": [1, 1, 1], "block": [32, 2, 1]}}', b'"grid": [1, 1, 1], "block": [32, 2, 1]}}]', 0),
        (b'"grid": [1, 1, 1]', b'"grid": [{"a": 1}, {"b": 1}', 1),
        (b'"grid": [1, 1, 1]', b'"grid": [{"a": [{"ab"c": 1}, {"b": 1}], "x": 1}]', 1),
        (b'"grid": [1, 1, 1]', b"\xff\xfe\x00\x00", 1),
    ],
)
@pytest.mark.parametrize("piece", [40, 100_000])
def test_other_damage_costs_its_own_event(tmp_path: Path, damage: bytes, instead: bytes, lost: int, piece: int) -> None:
    events = [*small(4), *(operator(f"o{k}", ts=300 + k) for k in range(20)), kernel("last", ts=900)]
    content = text(events, after=ABOUT)
    assert content.count(damage) == 1
    content = content.replace(damage, instead)
    recording, rows = one(tmp_path, content, piece)
    whole = expected(events)["activities"]
    found = as_read(recording, rows)["activities"]
    assert found <= whole
    assert len(whole) - 1 <= found.total() <= len(whole)
    if lost:
        assert found.total() == len(whole) - 1
    assert recording.problems
    assert recording.processes[0].rank == 5


def test_something_opened_and_never_closed_far_from_the_end(tmp_path: Path) -> None:
    """No border from the end holds then, and the text must not be held for ever."""
    events = [kernel(f"k{k}", ts=k, correlation=k) for k in range(120_000)]
    content = text(events).replace(b'"stream": 7, "correlation": 5}', b'"stream": [7, "correlation": 5}', 1)
    content = content.replace(b'"stream": 7, "correlation": 9}', b'"stream": [{"a": 1}, 7}', 1)
    recording, rows = one(tmp_path, content)
    assert len(rows["activities"]) == 119_998
    assert len(recording.problems) == 1


def test_invalid_utf8_is_replaced_and_told(tmp_path: Path) -> None:
    content = text(EVENTS).replace(b"kernel_1", b"ker\xffnel").replace(b"aten::add", b"\xfe")
    recording, rows = one(tmp_path, content)
    assert len(rows["activities"]) == 5
    assert "ker\ufffdnel<a, b>" in recording.names
    assert recording.problems == ["2 names are not valid UTF-8: their invalid bytes were replaced"]


def test_nested_too_deeply(tmp_path: Path) -> None:
    deep = text([*EVENTS, operator("@@")]).replace(b'"@@"', b"[" * 100_000 + b"]" * 100_000)
    recording, rows = one(tmp_path, deep)
    assert len(rows["activities"]) == 5
    assert recording.problems


def test_a_damaged_head_and_tail(tmp_path: Path) -> None:
    head = {"INFO": "@", "distributedInfo": {"backend": "nccl", "rank": 5}, "baseTimeNanoseconds": 10**18}
    for how in ("before", "after"):
        content = text([step(), call(), kernel()], **{how: head}).replace(b'"@"', b'"a "quote" in it"')
        recording, rows = one(tmp_path, content)
        assert len(rows["activities"]) == 1
        assert recording.processes[0].rank == 5
        assert recording.utc_offset_ns == 10**18
        assert any("is damaged" in problem or "cut or damaged" in problem for problem in recording.problems)


def test_trailing_commas_and_backslashes(tmp_path: Path) -> None:
    content = text(EVENTS).replace(b"]}}]", b"]}}, ]").replace(b"kernel_1", rb"C:\kernel_1")
    content = content[: content.rindex(b"]")] + b", \n" + content[content.rindex(b"]") :]
    recording, rows = one(tmp_path, content)
    assert len(rows["activities"]) == 5
    assert recording.problems == []
    assert any(name.startswith("C:\\kernel_1") for name in recording.names)


def test_text_without_an_end_is_not_held_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_HELD_BYTES", "_SALVAGE_BYTES", "_LONGEST_EVENT"):
        monkeypatch.setattr(f"jitter.readers.chrome_trace.{limit}", 10_000)
    content = text([*EVENTS, kernel("x" * 50_000), kernel("y", 2000), kernel("z", 3000)], after={"INFO": "y" * 50_000})
    recording, rows = one(tmp_path, content, 1000)
    assert len(rows["activities"]) == 7
    assert any("never closed" in problem for problem in recording.problems)
    assert any("the members after them are cut or damaged" in problem for problem in recording.problems)
