"""Microseconds to nanoseconds, against decimal arithmetic."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from jitter.readers.kineto.columns import join_values, parse_microseconds
from tests.support.kineto_traces import call, kernel, read, step, write

PLAIN = st.builds(
    lambda whole, digits: f"{whole}.{digits}" if digits else str(whole),
    st.integers(-(10**9), 4 * 10**15),
    st.text("0123456789", max_size=3),
)
ANY = st.one_of(
    PLAIN,
    st.decimals(allow_nan=True).map(str),
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(
        ["null", '""', "true", "1e400", "-1E-400", "9223372036854775807", "9" * 60, "-", "1.", ".5", "1-2"]
    ),
)


def oracle(word: str) -> int | None:
    try:
        value = Decimal(word)
    except ArithmeticError:
        return None
    if not value.is_finite() or abs(value) > Decimal(2**62) / 1000:
        return None
    return int((value * 1000).to_integral_value())


@pytest.mark.parametrize("words", [PLAIN, ANY])
def test_exact_as_decimals(words) -> None:
    @given(st.lists(st.lists(words, min_size=1), max_size=4))
    def check(parts: list[list[str]]) -> None:
        values, valid = parse_microseconds([",".join(part).encode() for part in parts])
        flat = [oracle(word) for part in parts for word in part]
        assert valid.tolist() == [value is not None for value in flat]
        assert values.tolist() == [value or 0 for value in flat]
        assert values.dtype == np.int64

    check()


def test_epoch_microseconds_do_not_fit_a_float() -> None:
    words = [f"1712195495{k:06d}.{k % 1000:03d}" for k in range(20_000)]
    values, _ = parse_microseconds([",".join(words).encode()])
    assert values.tolist() == [int(word.replace(".", "")) for word in words]
    assert sum(round(float(word) * 1000) != int(word.replace(".", "")) for word in words) > 10_000


def test_values_with_commas_of_their_own_keep_the_others_in_place() -> None:
    assert join_values([Raw(b"1"), Raw(b'"a,b"'), Raw(b"[1,2]"), Raw(b"4")]) == b"1,null,null,4"
    assert join_values([]) == b""


@pytest.mark.parametrize("odd", [False, 0.0, "0"])
def test_ids_that_equal_integers_of_other_types(tmp_path: Path, odd: object) -> None:
    """In Python 0 == False, so equal values may be of several types."""
    events = [
        step(pid=0),
        call(pid=0),
        kernel(),
        call(pid=odd, correlation=2),
        kernel(ts=200.0, correlation=2, pid=odd),
    ]
    _, rows = read(write(tmp_path / "t.json", events))
    assert [row["device"] for row in rows["activities"]] == [0, None if odd is False else 0]
