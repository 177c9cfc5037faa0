"""The metadata of an export: ranks in order of trust, hosts, clock, GPUs; and no secrets."""

from pathlib import Path

import pytest

from tests.support import nsys_exports as nsys
from tests.support.nsys_exports import export, global_id, kernel, marker, memory

pytestmark = pytest.mark.parametrize("form", nsys.FORMS)
SECRET = "hunter2"


@pytest.fixture
def at(tmp_path: Path, form: str) -> Path:
    return tmp_path / ("report.sqlite" if form == "sqlite" else "report_pqtdir")


def processes(at: Path, form: str, **tables: list[nsys.Row]):
    return nsys.read(nsys.write(at, form, export(**tables)))[0].processes


def system(name: str, value: str, machine: int = 1) -> nsys.Row:
    return {"globalVid": machine << 48, "devStateName": "Local (CLI)", "name": name, "nameEnum": 1, "value": value}


def capture(name: str, value: str | None) -> nsys.Row:
    return {"name": name, "value": value}


def environment(*variables: str, separator: str = ";") -> list[nsys.Row]:
    return [system("DeviceEnvironment", separator.join(variables))]


def test_an_mpi_annotation_names_the_rank(at: Path, form: str) -> None:
    events = [marker(start=1, end=None, kind=39, text="MPI Rank 12"), marker(start=2, end=None, kind=39, text="other")]
    (process,) = processes(at, form, NVTX_EVENTS=events)
    assert (process.rank, process.rank_from) == (12, "NVTX 'MPI Rank 12'")


def test_an_mpi_annotation_may_be_a_registered_string(at: Path, form: str) -> None:
    strings = [*nsys.STRINGS, nsys.string(30, "MPI Rank 3")]
    (process,) = processes(at, form, NVTX_EVENTS=[marker(end=None, kind=39, textId=30)], StringIds=strings)
    assert process.rank == 3


def test_mpi_ranks_are_of_their_process(at: Path, form: str) -> None:
    first, second = processes(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(pid=8), kernel(pid=7)],
        MPI_RANKS=[{"globalTid": global_id(7, 70), "rank": 4}, {"globalTid": global_id(8, 80), "rank": 5}],
    )
    assert [(p.pid, p.rank, p.rank_from) for p in (first, second)] == [(8, 5, "MPI_RANKS"), (7, 4, "MPI_RANKS")]


def test_the_annotation_goes_before_the_table(at: Path, form: str) -> None:
    (process,) = processes(
        at,
        form,
        NVTX_EVENTS=[marker(end=None, kind=39, text="MPI Rank 1")],
        MPI_RANKS=[{"globalTid": global_id(7, 70), "rank": 2}],
    )
    assert (process.rank, process.rank_from) == (1, "NVTX 'MPI Rank 1'")


def test_a_process_with_two_ranks_has_none(at: Path, form: str) -> None:
    events = [marker(kind=39, text="MPI Rank 1"), marker(kind=39, text="MPI Rank 2")]
    recording, _ = nsys.read(nsys.write(at, form, export(NVTX_EVENTS=events)))
    assert recording.processes[0].rank is None
    assert recording.problems == ["process 7 has several MPI ranks (1, 2)"]


@pytest.mark.parametrize("separator", [";", "\x00"])
def test_the_launchers_rank_and_nothing_else_of_the_environment(at: Path, form: str, separator: str) -> None:
    variables = [f"PMI_SHARED_SECRET={SECRET}", "LOCAL_RANK=9", "SLURM_PROCID=6", f"MYRANK={SECRET}", "XRANK=1"]
    tables = export(
        TARGET_INFO_SYSTEM_ENV=environment(*variables, separator=separator),
        META_DATA_CAPTURE=[capture("PROCESS_0:ENVIRONMENT_VARIABLE", f'TOKEN="{SECRET}"')],
    )
    recording, rows = nsys.read(nsys.write(at, form, tables))
    (process,) = recording.processes
    assert (process.launcher_rank, process.launcher_rank_from) == (6, "SLURM_PROCID")
    assert process.rank is None
    assert SECRET not in repr((recording, list(recording.names), rows))


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        (["PMI_RANK=4", "OMPI_COMM_WORLD_RANK=3", "SLURM_PROCID=2", "RANK=1"], (1, "RANK")),
        # mpirun in a batch script of Slurm: all processes inherit the script's own number
        (["PMI_RANK=4", "OMPI_COMM_WORLD_RANK=3", "SLURM_PROCID=0"], (3, "OMPI_COMM_WORLD_RANK")),
        (["SLURM_PROCID=0", "PMI_RANK=4"], (4, "PMI_RANK")),
        (["PMIX_RANK=5", "PMI_RANK=4", "OMPI_COMM_WORLD_RANK=3"], (3, "OMPI_COMM_WORLD_RANK")),
        (["MV2_COMM_WORLD_RANK=6", "PMIX_RANK=5", "PMI_RANK=4"], (4, "PMI_RANK")),
        (["MV2_COMM_WORLD_RANK=6", "PMIX_RANK=5"], (5, "PMIX_RANK")),
        (["MV2_COMM_WORLD_RANK=6"], (6, "MV2_COMM_WORLD_RANK")),
        (["RANK=", "SLURM_PROCID=x", "PMI_RANK=-1"], (None, None)),
        # the second may be the tail of another variable's value: not to be trusted
        (["RANK=1", "RANK=2", "PMI_RANK=4"], (4, "PMI_RANK")),
        (["RANK=1", "RANK=1"], (1, "RANK")),
    ],
)
def test_the_order_of_launchers(at: Path, form: str, variables: list[str], rank: tuple[int | None, str | None]) -> None:
    (process,) = processes(at, form, TARGET_INFO_SYSTEM_ENV=environment(*variables))
    assert (process.launcher_rank, process.launcher_rank_from) == rank


@pytest.mark.parametrize(("several", "rank"), [(["--nproc-per-node", "8"], None), (["--nproc_per_node=1"], 3)])
def test_the_environment_of_torchrun_numbers_a_node(at: Path, form: str, several: list[str], rank: int | None) -> None:
    """One of the node's GPUs was recorded: the node's number is no rank of it."""
    command = ["--nnodes=4", *several, "train.py"]
    rows = [capture("PROCESS_0:COMMAND", "torchrun")]
    rows += [capture(f"PROCESS_0:ARGUMENT_{number}", word) for number, word in enumerate(command)]
    variables = environment("SLURM_PROCID=3", "SLURM_NTASKS=4", "SLURM_NODEID=3", "NODE_RANK=x")
    tables = export(META_DATA_CAPTURE=rows, TARGET_INFO_SYSTEM_ENV=variables)
    recording, _ = nsys.read(nsys.write(at, form, tables))
    (process,) = recording.processes
    assert process.launcher_rank == rank
    assert (recording.node, recording.node_from) == (3, "SLURM_NODEID")


def test_the_launched_process_own_environment_is_quoted(at: Path, form: str) -> None:
    rows = [
        capture("DEVICE_TYPE", "Unix"),
        capture("PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="17"'),
        capture("PROCESS_1:ENVIRONMENT_VARIABLE", 'RANK="18"'),
        capture("ANOTHER", None),
    ]
    (process,) = processes(at, form, META_DATA_CAPTURE=rows)
    assert (process.launcher_rank, process.launcher_rank_from) == (17, "RANK")


def test_the_host(at: Path, form: str) -> None:
    (process,) = processes(
        at, form, TARGET_INFO_SYSTEM_ENV=[system("CpuCores", "8"), system("Hostname", "node-17.cluster")]
    )
    assert process.host == "node-17.cluster"


def test_two_hosts_in_one_report(at: Path, form: str) -> None:
    kernels = [kernel(globalPid=global_id(7, machine=machine)) for machine in (2, 1, 3)]
    found = processes(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        TARGET_INFO_SYSTEM_ENV=[system("Hostname", "a", machine=1), system("Hostname", "b", machine=2)],
    )
    assert {process.host for process in found} == {"b", "a", None}
    assert [process.host for process in found][:3] == ["b", "a", None]


@pytest.mark.parametrize(("shown", "host"), [("node17", "node17"), ("Local (CLI)", None), ("localhost", None)])
def test_a_display_name_is_a_host_only_if_plainly_so(at: Path, form: str, shown: str, host: str | None) -> None:
    (process,) = processes(at, form, META_DATA_CAPTURE=[capture("DEVICE_DISPLAY_NAME", shown)])
    assert process.host == host


@pytest.mark.parametrize("table", ["EXPORT_META_DATA", "META_DATA_EXPORT"])
def test_clock_and_version(at: Path, form: str, table: str) -> None:
    times = {"utcEpochNs": 1_700_000_000_123_456_789, "utcTime": "x", "localTime": "y"}
    version = {table: [capture("EXPORT_PRODUCT_VERSION", "2026.2.1.210")]}
    recording, _ = nsys.read(nsys.write(at, form, export(TARGET_INFO_SESSION_START_TIME=[times], **version)))
    assert recording.utc_offset_ns == 1_700_000_000_123_456_789
    assert recording.profiler_version == "2026.2.1.210"


@pytest.mark.parametrize(("value", "offset_ns"), [("true", 0), ("false", 10**18)])
def test_times_that_the_export_has_made_utc(at: Path, form: str, value: str, offset_ns: int) -> None:
    """`nsys export --ts-normalize=true`; sessions that start at different times stay aligned."""
    clock = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 10**18, "utcTime": "x", "localTime": "y"}]}
    normalized = {"META_DATA_EXPORT": [capture("EXPORT_PARAM_TIME_NORMALIZE", value)]}
    recording, _ = nsys.read(nsys.write(at, form, export(**clock, **normalized)))
    assert recording.utc_offset_ns == offset_ns


def test_no_clock_no_version_no_host(at: Path, form: str) -> None:
    recording, _ = nsys.read(nsys.write(at, form, export()))
    assert (recording.utc_offset_ns, recording.profiler_version, recording.processes[0].host) == (None, None, None)


def test_gpus_that_processes_number_for_themselves(at: Path, form: str) -> None:
    # each process sees one GPU as its number 0; pid 9 is in no table
    _, rows = nsys.read(
        nsys.write(
            at,
            form,
            export(
                CUPTI_ACTIVITY_KIND_KERNEL=[kernel(start=1, pid=7), kernel(start=2, pid=8), kernel(start=3, pid=9)],
                CUPTI_ACTIVITY_KIND_MEMSET=[memory(start=4, pid=8, deviceId=1)],
                TARGET_INFO_CUDA_DEVICE=[
                    {"gpuId": 5, "cudaId": 0, "pid": 7},
                    {"gpuId": 6, "cudaId": 0, "pid": 8},
                    {"gpuId": 3, "cudaId": 1, "pid": 8},
                ],
            ),
        )
    )
    assert {row["start_ns"]: row["device"] for row in rows["activities"]} == {1: 5, 2: 6, 3: 0, 4: 3}
