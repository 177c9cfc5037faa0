import pytest

from jitter.core.formatting import abbreviate, format_count, format_numbers, format_percent, format_rank, format_time


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
    assert format_time(ns) == words


def test_signed_time():
    assert [format_time(ns, signed=True) for ns in (5_000, -5_000, 0)] == ["+5.00 µs", "−5.00 µs", "0 ns"]


def test_others():
    assert [format_percent(f) for f in (0.20286, 0.0074, 0.00001, 0.0, -0.0113, -0.2, -0.00001, None)] == [
        "20.3%",
        "0.74%",
        "<0.01%",
        "0.00%",
        "−1.13%",
        "−20.0%",
        ">−0.01%",
        "unknown",
    ]
    assert (format_rank(3, "n1"), format_rank(3, None)) == ("rank 3 (n1)", "rank 3")
    assert (format_count(1, "rank"), format_count(1200, "rank")) == ("1 rank", "1,200 ranks")
    assert (abbreviate("short"), len(abbreviate("x" * 90)), abbreviate("x" * 90)[-1]) == ("short", 44, "…")


def test_a_text_names_some_of_many_numbers():
    squares = [number * number for number in range(2, 102)]
    text = format_numbers(squares)
    assert text.startswith("4,9,16,")
    assert text.endswith(",…,10201")
    assert text.count(",") == 23
    assert format_numbers(squares, in_full=True) == ",".join(map(str, squares))
