"""However the text is cut into pieces, and whatever its strings and lists hold, the events are the same."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Recording
from jitter.readers.chrome_trace import EventList
from jitter.readers.kineto.events import decode_events, looks_like_event
from tests.support.fuzz_depth import fuzz, of_all
from tests.support.kineto_traces import Row, as_read, call, expected, kernel, operator, read, small, step, text, write

pytestmark = pytest.mark.slow

TRICKY = [
    step(name="},{"),
    operator("}, {", **{"Concrete Inputs": [{"a": 1}, {"b": [{}, {}]}, "]", "[", '"}, {"ph": "X"'], "x": [{}, {}]}),
    kernel('a"},{"cat": "kernel"', ts=7),
    call(ts=5),
    kernel("b" * 3000, ts=9),
    operator("many", list=[{"k": k} for k in range(100)]),
    {},
    *small(),
]
AFTER = {"more": [{"a": 1}, {"b": 2}], "distributedInfo": {"rank": 5, "pg_config": [{"ranks": [0]}, {"ranks": [1]}]}}


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 300, 1000, 4096, 10**6])
@pytest.mark.parametrize("indent", [None, 1])
def test_the_same_for_every_piece_size(tmp_path: Path, piece: int, indent: int | None) -> None:
    content = text(TRICKY, before={"deviceProperties": [{"id": 0}, {"id": 1}]}, after=AFTER, indent=indent)
    recording, rows = read(write(tmp_path / "t.json", content), piece)
    assert as_read(recording, rows) == expected(TRICKY)
    assert recording.problems == []
    assert recording.processes[0].rank == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('}{],[":\\ ab\n', max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('}{],[":a', max_size=4), inner, max_size=4),
    max_leaves=12,
)
# with a category, as every event has; values may be anything
OBJECTS = st.lists(st.dictionaries(st.text("},{n", max_size=3), JSON, max_size=4).map(lambda d: d | {"cat": "x"}))


@fuzz
@settings(max_examples=of_all(150, 40))
@given(OBJECTS, st.integers(1, 200), st.sampled_from([None, 0, 1]), JSON)
def test_all_objects_are_found(objects, piece: int, indent: int | None, after) -> None:
    whole = json.dumps({"traceEvents": objects, "after": after}, indent=indent).encode()
    start = whole.index(b"[") + 1
    pieces = (whole[at : at + piece] for at in range(start, len(whole), piece))
    events = EventList(pieces, b"", start, decode_events, looks_like_event)
    assert sum(len(some) for some in events) == events.count == len(objects)
    assert events.problems() == []
    assert json.loads(b'{"":0' + (events.tail or b""))["after"] == after


KEYS = st.sampled_from(["name", "pid", "tid", "ts", "dur", "args"])
ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-1e6, 1e6)
    | st.text(max_size=4)
    | st.sampled_from(["7", "0x7f", "stream 7", 'é"\\', [7], [1, {"a": 2}], {"x": "},{"}, 2**70, -(2**63)])
)


def _read_or_refuse(path: Path) -> tuple[Recording, dict[str, list[Row]]] | str:
    try:
        return read(path)
    except UnreadableTraceError as error:
        return str(error)


@fuzz
@settings(
    max_examples=of_all(200, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([kernel, call, step, operator]),
            st.dictionaries(KEYS, ODD, max_size=3),
            st.sets(KEYS, max_size=2),
        ),
        max_size=6,
    )
)
def test_both_ways_to_decode_say_the_same(tmp_path: Path, made) -> None:
    """A chunk that states parameters of collectives is decoded in another way as a whole."""
    odd = [
        {key: value for key, value in (make() | changed).items() if key not in absent} for make, changed, absent in made
    ]
    events = [*(event for event in small() if "cat" in event), *odd]
    plain, told = (
        _read_or_refuse(write(tmp_path / "t.json", [operator(name, ts=1e4), *events]))
        for name in ("aten::x", "record_param_comms")
    )
    if isinstance(plain, str) or isinstance(told, str):  # calls of several processes that cannot be told apart
        assert plain == told
        return
    assert plain[1] == told[1]
    names = ["aten::x" if name == "record_param_comms" else name for name in told[0].names]
    assert (list(plain[0].names), plain[0].problems) == (names, told[0].problems)
    assert plain[0].processes == told[0].processes
