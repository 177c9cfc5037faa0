"""Arrow's own conversions say what a column holds."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.core.arrow import encode_lists, from_numpy, is_valid, to_list, to_numpy

pieces = st.lists(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=20), max_size=4)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pieces, st.sampled_from([pa.int32(), pa.int64(), pa.float64()]), st.integers(0, 9), st.integers(0, 30))
def test_out_of_arrow(made: list[list[int | None]], kind: pa.DataType, first: int, rows: int):
    chunked = pa.chunked_array([pa.array(piece, kind) for piece in made], kind).slice(first, rows)
    wanted = chunked.to_pylist()
    assert is_valid(chunked).tolist() == [value is not None for value in wanted]
    values = to_numpy(chunked)
    assert values.dtype == kind.to_pandas_dtype()
    assert values.tolist() == [0 if value is None else value for value in wanted]
    assert to_numpy(chunked, null=-1).tolist() == [-1 if value is None else value for value in wanted]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(pieces, st.sampled_from(["integers", "texts", "dictionaries"]))
def test_values_as_objects(made: list[list[int | None]], what: str):
    kind = pa.int64() if what == "integers" else pa.string()
    pieces = [[value if what == "integers" or value is None else str(value) for value in piece] for piece in made]
    chunked = pa.chunked_array([pa.array(piece, kind) for piece in pieces], kind)
    found = to_list(chunked.dictionary_encode() if what == "dictionaries" else chunked)
    assert found == chunked.to_pylist()
    assert {type(value) for value in found} <= {int, str, type(None)}


@pytest.mark.parametrize(("kind", "most"), [(pa.uint8(), 2**8 - 1), (pa.uint32(), 2**32 - 1), (pa.uint64(), 2**64 - 1)])
def test_without_a_sign(kind: pa.DataType, most: int):
    assert to_numpy(pa.chunked_array([pa.array([0, most], kind)])).tolist() == [0, most]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.booleans()), max_size=30), st.integers(1, 3))
def test_into_arrow(made: list[tuple[int, bool]], stride: int):
    numbers, told = [n for n, _ in made], [t for _, t in made]
    for kind in (np.int32, np.int64, np.float64, np.bool_):
        values = np.array(numbers, np.int64).astype(kind)[::stride]
        where = np.array(told, np.bool_)[::stride]
        assert from_numpy(values, where).equals(pa.array(values, mask=~where))
        assert from_numpy(values).equals(pa.array(values))


def test_pandas_is_not_loaded_after_it_is_hidden():
    script = (
        "import sys, numpy as np\n"
        "from jitter.core.arrow import from_numpy, hide_pandas, is_valid, to_numpy\nimport pyarrow as pa\n"
        "hide_pandas()\n"
        "made = pa.chunked_array([from_numpy(np.arange(5), np.arange(5) > 2)])\n"
        "assert is_valid(made).tolist() == [False, False, False, True, True] and to_numpy(made)[4] == 4\n"
        "assert pa.array(['gemm', 'été'], pa.string()).to_pylist() == ['gemm', 'été']\n"
        "assert 'pandas' not in sys.modules\n"
        "assert made.to_pandas().isna().tolist() == [True, True, True, False, False]\n"
        "assert 'pandas' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


lists = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 5), max_size=3)), max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(lists, max_size=3), st.integers(0, 9), st.integers(0, 30))
def test_lists_as_codes(made: list[list[list[int] | None]], first: int, rows: int):
    kind = pa.list_(pa.int32())
    chunked = pa.chunked_array([pa.array(piece, kind) for piece in made], kind).slice(first, rows)
    codes, distinct = encode_lists(chunked)
    assert [None if code < 0 else list(distinct[code]) for code in codes.tolist()] == chunked.to_pylist()
    assert len(set(distinct)) == len(distinct)
    assert set(codes[codes >= 0].tolist()) == set(range(len(distinct)))
