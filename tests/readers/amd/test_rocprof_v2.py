"""rocprofv2's CSV: a results file, and the calls beside it."""

from pathlib import Path

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.ingestion.discovery.discover import discover
from jitter.readers import readers
from tests.support.amd_traces import read

RESULTS = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID,XCC_Index\n\n"
)
CALLS = "Domain,Function,Start_Timestamp,End_Timestamp,Correlation_ID\n\n"


def row(number: int, start: int, end: int, pid: int = 7, name: str = '"k(int, int)"') -> str:
    return f"{number},4,2,{pid},8,64,64,0,0,8,0,16,64,{name},{start},{end},{number},0\n"


def test_kernels_and_calls(tmp_path: Path):
    (tmp_path / "results_rank-3.csv").write_text(
        RESULTS + row(1, 100, 200) + row(2, 150, 250, name='"k(int, int) (.kd)"') + row(3, 300, 290)
    )
    (tmp_path / "hip_api_trace_rank-3.csv").write_text(
        CALLS + "HIP_API_DOMAIN,hipLaunchKernel,50,60,1\nHIP_API_DOMAIN,hipLaunchKernel,70,80,2\nHIP,__hipPop,1,2,9\n"
    )
    (tmp_path / "roctx_trace_rank-3.csv").write_text("Domain,ROCTX_ID,Message,Timestamp\n")
    found = read(tmp_path / "results_rank-3.csv")
    assert [(k["start_ns"], k["device"], k["stream"], found.name(k)) for k in found.kernels] == [
        (100, 4, 2, "k(int, int)"),
        (150, 4, 2, "k(int, int)"),
    ]
    assert [(k["grid_x"], k["block_x"]) for k in found.kernels] == [(1, 64)] * 2
    assert [(found.launch(k) or {})["start_ns"] for k in found.kernels] == [50, 70]
    assert found.recording.processes[0].pid == 7
    assert any("without a possible time" in problem for problem in found.recording.problems)
    listed = discover([tmp_path])
    assert ([s.path.name for s in listed.sources], listed.others) == (["results_rank-3.csv"], 0)


def test_without_calls(tmp_path: Path):
    (tmp_path / "results_7.csv").write_text(RESULTS + row(1, 100, 200))
    found = read(tmp_path / "results_7.csv")
    assert len(found.kernels) == 1
    assert found.recording.rank_in_name is None
    assert any("hip_api_trace" in problem for problem in found.recording.problems)


def test_calls_of_several_processes_are_not_guessed(tmp_path: Path):
    (tmp_path / "results_x.csv").write_text(RESULTS + row(1, 100, 200) + row(1, 100, 200, pid=9))
    (tmp_path / "hip_api_trace_x.csv").write_text(CALLS + "HIP_API_DOMAIN,hipLaunchKernel,50,60,1\n")
    found = read(tmp_path / "results_x.csv")
    assert len(found.kernels) == 2
    assert found.calls == []
    assert any("2 processes" in problem for problem in found.recording.problems)


def test_no_kernels(tmp_path: Path):
    (tmp_path / "results_x.csv").write_text(RESULTS)
    with pytest.raises(UnreadableTraceError, match="no kernels"):
        list(readers()["rocprof-v2"].open(tmp_path / "results_x.csv")[1](lambda _: None))
