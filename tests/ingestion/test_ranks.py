"""Ranks from names, and from what is known of the GPUs of one recording."""

from pathlib import Path
from typing import Any

import pytest

from jitter.core.errors import UnknownRankError, UsageError
from jitter.ingestion.ranks.decide_ranks import (
    GpuEvidence,
    RankDecision,
    RankOptions,
    decide_ranks,
    parse_rank_options,
    read_rank_map,
)


def _gpu(process: int = 0, device: int | None = 0, kernels: int = 100, **known: object) -> GpuEvidence:
    blank = dict.fromkeys(
        ("step_text_rank", "process_rank", "process_rank_from", "launcher_rank", "launcher_rank_from")
    )
    return GpuEvidence(process, device, kernels, **(blank | known))  # type: ignore[arg-type]


NAMELESS = Path("report.sqlite")


def _ranks(verdicts: list[RankDecision]) -> list[int | None]:
    return [verdict.rank for verdict in verdicts]


def test_a_launchers_rank_holds_for_one_process_only():
    assert _ranks(decide_ranks(NAMELESS, [_gpu(launcher_rank=4, launcher_rank_from="RANK")], RankOptions())) == [4]
    two = [_gpu(0, 0, launcher_rank=4), _gpu(1, 1, launcher_rank=4)]
    verdicts = decide_ranks(NAMELESS, two, RankOptions())
    assert _ranks(verdicts) == [0, 1]
    assert all(v.warning is not None and "a guess" in v.warning for v in verdicts)


def test_a_file_name_holds_for_one_process_only():
    assert _ranks(decide_ranks(Path("rank6.sqlite"), [_gpu()], RankOptions())) == [6]
    assert _ranks(decide_ranks(Path("rank6.sqlite"), [_gpu(0, 0), _gpu(1, 1)], RankOptions())) == [0, 1]


def test_some_processes_known_is_not_enough():
    with pytest.raises(UnknownRankError, match="--rank-map"):
        decide_ranks(NAMELESS, [_gpu(0, 0, step_text_rank=2), _gpu(1, 1)], RankOptions())


def test_device_order_needs_distinct_devices():
    for gpus in ([_gpu(0, 0), _gpu(1, 0)], [_gpu(0, None)], [_gpu(0, 0)], [_gpu(0, None), _gpu(1, 1)]):
        with pytest.raises(UnknownRankError, match="--rank-pattern"):
            decide_ranks(NAMELESS, gpus, RankOptions())
    assert _ranks(decide_ranks(NAMELESS, [_gpu(0, 5), _gpu(1, 2)], RankOptions())) == [1, 0]


def test_one_process_of_several_gpus():
    verdicts = decide_ranks(NAMELESS, [_gpu(0, 1, process_rank=3), _gpu(0, 0, process_rank=3)], RankOptions())
    assert _ranks(verdicts) == [7, 6]
    assert all("a guess" in (v.warning or "") for v in verdicts)


def test_a_stray_gpu_is_left_out_and_said():
    verdicts = decide_ranks(NAMELESS, [_gpu(0, 0, 3, process_rank=5), _gpu(0, 5, 997, process_rank=5)], RankOptions())
    assert _ranks(verdicts) == [None, 5]
    assert verdicts[0].warning == "3 kernels of rank 5 on device 0, which is not its own, are left out"
    assert verdicts[1].warning is None


def test_told_rank_for_a_file_of_several():
    with pytest.raises(UnknownRankError, match="file,device,rank"):
        decide_ranks(NAMELESS, [_gpu(0, 0), _gpu(1, 1)], parse_rank_options(3, None, None))


def test_rank_zero_is_a_rank():
    gpu = _gpu(0, 1, process_rank=0, launcher_rank=4)
    assert _ranks(decide_ranks(NAMELESS, [gpu], RankOptions())) == [0]
    assert _ranks(decide_ranks(Path("rank6.sqlite"), [gpu], RankOptions(rank=0))) == [0]


@pytest.mark.parametrize(
    ("path", "known", "first", "second"),
    [
        ("a.json", {"process_rank": 7, "process_rank_from": "distributedInfo", "step_text_rank": 2}, 7, 2),
        ("rank_2.json", {"process_rank": 7, "process_rank_from": "distributedInfo"}, 7, 2),
        ("rank_2.json", {"step_text_rank": 7}, 7, 2),
    ],
)
def test_contradicting_ranks_are_an_error_that_shows_both(path: str, known: dict[str, Any], first: int, second: int):
    with pytest.raises(UnknownRankError) as error:
        decide_ranks(Path(path), [_gpu(0, 1, **known)], RankOptions())
    assert f"says rank {first}, and" in str(error.value)
    assert f"says rank {second}" in str(error.value)
    assert f"--rank {first} or --rank {second}" in str(error.value)
    assert _ranks(decide_ranks(Path(path), [_gpu(0, 1, **known)], RankOptions(rank=second))) == [second]


def test_a_launchers_process_number_contradicts_nothing():
    launched = {"launcher_rank": 7, "launcher_rank_from": "SLURM_PROCID"}
    assert _ranks(decide_ranks(NAMELESS, [_gpu(step_text_rank=2, **launched)], RankOptions())) == [2]
    assert _ranks(decide_ranks(Path("rank_2.json"), [_gpu(**launched)], RankOptions())) == [7]


@pytest.mark.parametrize("path", ["trace_2.json", "gpu2.json", "rank_2/trace.json", "x-TP-2.trace.json.gz"])
def test_weak_names_contradict_nobody(path: str):
    assert _ranks(decide_ranks(Path(path), [_gpu(process_rank=7)], RankOptions())) == [7]


def test_pattern():
    told = parse_rank_options(None, None, r"node(\d+)/gpu")
    assert _ranks(decide_ranks(Path("a/node7/gpu.sqlite"), [_gpu(step_text_rank=1)], told)) == [7]
    assert _ranks(decide_ranks(Path("a/other/gpu.sqlite"), [_gpu(step_text_rank=1)], told)) == [1]
    assert _ranks(decide_ranks(Path("a/node99999999999/gpu.sqlite"), [_gpu(step_text_rank=1)], told)) == [1]
    with pytest.raises(UnknownRankError, match="several processes"):
        decide_ranks(Path("node7/gpu.sqlite"), [_gpu(0, 0), _gpu(1, 1)], told)


def test_map_files(tmp_path: Path):
    path = tmp_path / "map.csv"
    path.write_text("\ufefffile,rank\n\n a.sqlite , 4\nb c.sqlite,0,5\n", encoding="utf-8")
    assert read_rank_map(path) == (("a.sqlite", None, 4), ("b c.sqlite", 0, 5))
    path.write_text("a.sqlite,99999999999\n")
    with pytest.raises(UsageError, match=r"map\.csv:1"):
        read_rank_map(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"map\.csv"):
        read_rank_map(path)
