"""Written PyTorch traces, read back with the standard library's JSON, against the recordings."""

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jitter.core.errors import UsageError
from jitter.simulate import Job, RankRecording, simulate, write
from tests.support.partial_captures import PartialCapture

JOB = Job(ranks=2, steps=2, kernels=40, seed=4, first_step=7)
RUN = simulate(JOB)


def text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()


def load(path: Path) -> Any:
    # decimals as the digits they are: a float would round them
    return json.loads(text(path), parse_float=Decimal)


def ns(micros: Decimal | int) -> int:
    whole = Decimal(micros) * 1000
    assert whole == int(whole)
    return int(whole)


def gpu_rows(events: list[dict[str, Any]], cats: tuple[str, ...]) -> list[tuple[Any, ...]]:
    calls = {e["args"]["correlation"]: e for e in events if "correlation" in e.get("args", {}) and e["cat"] not in cats}
    found = []
    for e in events:
        if e["cat"] in cats:
            call = calls.get(e["args"]["correlation"])
            times = (None, None) if call is None else (ns(call["ts"]), ns(call["dur"]))
            found.append((ns(e["ts"]), ns(e["dur"]), e["args"]["stream"], *times))
    return found


def expected(own: RankRecording, base: int = 0) -> list[tuple[Any, ...]]:
    times = zip(own.start_ns, own.end_ns, own.launch_start_ns, own.launch_end_ns, own.ops(), strict=True)
    return [(s + base, e - s, op.stream, ls + base, le - ls) for s, e, ls, le, op in times]


NEW = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("distributed", ["before", "after", "absent"])
def test_every_nanosecond_reads_back(tmp_path: Path, zipped: bool, distributed: str):
    paths = write(RUN, tmp_path, "kineto", zipped=zipped, distributed=distributed, cpu_ops=2)
    assert [p.name for p in paths] == [f"rank-{r}.pt.trace.json{'.gz' if zipped else ''}" for r in (0, 1)]
    for path, own in zip(paths, RUN.ranks(), strict=True):
        trace = load(path)
        assert gpu_rows(trace["traceEvents"], NEW) == expected(own)
        assert trace["baseTimeNanoseconds"] == own.clock.utc_epoch_ns
        if distributed == "absent":
            assert "distributedInfo" not in trace
        else:
            assert trace["distributedInfo"]["rank"] == own.rank
            assert (list(trace).index("distributedInfo") > list(trace).index("traceEvents")) == (distributed == "after")
        steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
        assert [(e["name"], ns(e["ts"]), ns(e["dur"]), e["tid"]) for e in steps] == [
            (f"ProfilerStep#{r.step}", r.start_ns, (r.end_ns or 0) - r.start_ns, own.pid) for r in own.steps
        ]
        operators = [e for e in trace["traceEvents"] if e["cat"] == "cpu_op"]
        assert len(operators) == 2 * len(own)


def test_old_spelling(tmp_path: Path):
    (path, *_) = write(RUN, tmp_path, "kineto", layout="2021")
    trace = load(path)
    assert "baseTimeNanoseconds" not in trace
    own = next(iter(RUN.ranks()))
    events = trace["traceEvents"]
    assert {e["cat"] for e in events} == {"Kernel", "Memcpy", "Memset", "Runtime", "Operator", "ac2g"}
    kernels = [e for e in events if e["cat"] in ("Kernel", "Memcpy", "Memset")]
    micros = [(t + own.clock.utc_epoch_ns) // 1000 for t in own.start_ns.tolist()]
    assert [e["ts"] for e in kernels] == micros
    assert all(isinstance(e["ts"], int) and isinstance(e["dur"], int) for e in kernels)
    assert not any("Collective name" in e["args"] for e in kernels)


def test_rocm(tmp_path: Path):
    paths = write(RUN, tmp_path, "kineto", layout="rocm", names="host")
    second = list(RUN.ranks())[1]
    assert paths[1].name == f"node0000_{second.pid}.{second.clock.utc_epoch_ns}.pt.trace.json.gz"
    events = load(paths[1])["traceEvents"]
    kernels = [e for e in events if e["cat"] == "kernel"]
    assert {e["args"]["device"] for e in kernels} == {3}
    assert {e["args"]["stream"] for e in kernels} == {0, 33}
    calls = {e["name"] for e in events if e["cat"] == "cuda_runtime"}
    assert {"hipLaunchKernel", "hipStreamSynchronize"} < calls
    assert not any(name.startswith("cuda") for name in calls)
    collectives = [e for e in kernels if e["name"].startswith("ncclDevKernel_Generic")]
    assert [e["args"]["Collective name"] for e in collectives] == ["allreduce"] * 4


def test_collective_arguments_on_the_kernel(tmp_path: Path):
    (path, *_) = write(RUN, tmp_path, "kineto")
    args = next(e["args"] for e in load(path)["traceEvents"] if "nccl" in e["name"])
    own = next(iter(RUN.ranks()))
    n_bytes = next(op.n_bytes for op in own.ops() if op.kind == "collective")
    assert (args["Collective name"], args["Group size"], args["In msg nelems"] * 2) == ("allreduce", 2, n_bytes)
    assert json.loads(args["Process Group Ranks"]) == [0, 1]


def test_a_bare_array_with_graphs_and_losses(tmp_path: Path):
    own = next(iter(RUN.ranks()))
    lost = PartialCapture(RUN, "node", cut_kernels=4, open_last=True)
    (path, *_) = write(lost, tmp_path, "kineto", container="array", zipped=False)  # type: ignore[arg-type]
    events = load(path)
    assert isinstance(events, list)
    found = gpu_rows(events, NEW)
    base = own.clock.utc_epoch_ns
    kept = sorted(row[:3] for row in expected(own, base))[:-4]
    assert sorted(row[:3] for row in found) == kept
    graphs = [e for e in events if e["name"] == "cudaGraphLaunch"]
    assert len(graphs) == JOB.steps
    forward = sum(op.phase == "forward" and op.kind == "compute" for op in own.ops()) // JOB.steps
    sharing = [
        e for e in events if e["cat"] == "kernel" and e["args"]["correlation"] == graphs[0]["args"]["correlation"]
    ]
    assert len(sharing) == forward


def test_the_same_run_gives_the_same_bytes(tmp_path: Path):
    one, other = (write(RUN, tmp_path / name, "kineto")[0] for name in ("a", "b"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("options", [{"layout": "2019"}, {"graphs": "graph"}, {"cpu_ops": -1}, {"names": "uuid"}])
def test_wrong_options(tmp_path: Path, options: dict[str, object]):
    with pytest.raises(UsageError):
        write(RUN, tmp_path, "kineto", **options)
