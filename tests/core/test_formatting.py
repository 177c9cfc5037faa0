import pytest

from jitter.core.formatting import brief, count_words, percent_words, rank_words, time_words


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (1000, "1.00 µs"),
        (78_249, "78.2 µs"),
        (999_499, "999 µs"),
        (999_600, "1.00 ms"),
        (1_159_365, "1.16 ms"),
        (9_996_000, "10.0 ms"),
        (-2_474, "−2.47 µs"),
        (61_000_000_000, "61.0 s"),
        (None, "unknown"),
        (float("nan"), "unknown"),
    ],
)
def test_time(ns, words):
    assert time_words(ns) == words


def test_signed_time():
    assert [time_words(ns, signed=True) for ns in (5_000, -5_000, 0)] == ["+5.00 µs", "−5.00 µs", "0 ns"]


def test_others():
    assert [percent_words(f) for f in (0.20286, 0.0074, 0.00001, 0.0, -0.0113, -0.2, -0.00001, None)] == [
        "20.3%",
        "0.74%",
        "<0.01%",
        "0.00%",
        "−1.13%",
        "−20.0%",
        "−<0.01%",
        "unknown",
    ]
    assert (rank_words(3, "n1"), rank_words(3, None)) == ("rank 3 (n1)", "rank 3")
    assert (count_words(1, "rank"), count_words(1200, "rank")) == ("1 rank", "1,200 ranks")
    assert (brief("short"), len(brief("x" * 90)), brief("x" * 90)[-1]) == ("short", 44, "…")
