"""Which numbers in a file's name can be ranks."""

import pytest

from jitter.readers.amd.rows import rank_in_file_name


@pytest.mark.parametrize(
    ("stem", "rank"),
    [
        ("myprofile-3", 3),
        ("my_profile_12", 12),
        ("trace.007", 7),
        ("out-0_", 0),
        ("4711", None),  # %pid%
        ("4711_5", None),
        ("mi300", None),
        ("run_20251209_070939", None),
        ("pid-12", None),
        ("out_pid_12", None),
        ("node-3", None),
        ("local_rank_3", None),
        ("localrank-3", None),
        ("step_10", None),
        ("run-2", None),
        ("train_run-2", None),
        ("grun-2", 2),
        ("myprofile", None),
        ("", None),
    ],
)
def test_trailing_numbers(stem: str, rank: int | None):
    assert rank_in_file_name(stem) == rank


def test_a_known_process_is_no_rank():
    assert rank_in_file_name("out_77", frozenset({77})) is None
    assert rank_in_file_name("out_77", frozenset({78})) == 77
