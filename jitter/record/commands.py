"""The commands that record a job: for each profiler and launcher, with names and markers that `ingest` understands."""

import shlex
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Profiler = Literal["nsys", "rocprofv3", "rocprof-sys", "torch", "jax", "vllm", "sglang"]
Launcher = Literal["torchrun", "srun", "mpirun", "k8s"]

_RANK_VARIABLE: Final = {"torchrun": "RANK", "srun": "SLURM_PROCID", "mpirun": "OMPI_COMM_WORLD_RANK", "k8s": "RANK"}
_CHECKING: Final = {"nsys": ", with nsys on PATH or --nsys PATH, which exports the reports"}
_KERNELS_OF_A_STEP: Final = 1_000
"""Of the example that says how large a recording gets."""
_OVERHEAD: Final = (
    "# what it slows down depends on the job: compare the step time that the job logs with and without nsys"
)
_CSV: Final = "# from ROCm 10 on, which writes CSV with a warning, `--output-format rocpd` does as well"
_RENDEZVOUS: Final = "HEAD_NODE:29500"


class JobShape(NamedTuple):
    """The job to record."""

    program: Sequence[str]
    """The training program with its arguments."""
    folder: str
    first: int
    last: int
    """The steps to record."""
    nodes: int
    gpus: int
    """GPUs per node."""
    light: bool = False
    """Whether GPU activities and markers alone are recorded, at the least overhead."""


def recording_lines(profiler: Profiler, launcher: Launcher, job: JobShape) -> str:
    """Return the lines to type and to add to the training loop, with comments that say what they cost."""
    parts = {
        "nsys": _nsys,
        "rocprofv3": _rocprofv3,
        "rocprof-sys": _rocprof_sys,
        "torch": _torch,
        "jax": _jax,
        "vllm": _vllm,
        "sglang": _sglang,
    }[profiler](launcher, job)
    folder = shlex.quote(job.folder)
    # a server's ranks record as many steps as come
    expected = f" --expect {job.nodes * job.gpus}x{job.last - job.first + 1}" if profiler != "vllm" else ""
    lines = [
        *parts,
        "",
        f"# 3. check, then analyze{_CHECKING.get(profiler, '')}",
        f"jitter inspect {folder}{expected}",
        f"jitter report {folder}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _nsys(launcher: Launcher, job: JobShape) -> list[str]:
    profiler = [
        *("nsys", "profile", "-t", "cuda,nvtx" if job.light else "cuda,nvtx,osrt"),
        *(("--sample=none", "--cpuctxsw=none") if job.light else ()),
        *("-o", f"{job.folder}/rank-%q{{{_RANK_VARIABLE[launcher]}}}"),
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--cuda-graph-trace=node"),
    ]
    megabytes = 0.5e-3 * _KERNELS_OF_A_STEP * (job.last - job.first + 1)
    return [
        "# 1. in the training loop: a marker around each step, and the capture range",
        *_marker_lines(job, capture=True),
        "",
        f"# 2. run; {_steps(job)} are recorded, about 0.5 kB per kernel in the export: {megabytes:,.1f} MB per rank at "
        f"{_KERNELS_OF_A_STEP:,} kernels a step",
        *([_OVERHEAD] if job.light else []),
        *_launch(launcher, profiler, job),
    ]


def _rocprofv3(launcher: Launcher, job: JobShape) -> list[str]:
    profiler = [
        *("rocprofv3", "--kernel-trace", "--hip-trace", "--marker-trace", "--memory-copy-trace", "--rccl-trace"),
        *("--output-format", "csv", "-d", job.folder, "-o", f"rank-%env{{{_RANK_VARIABLE[launcher]}}}%", "--"),
    ]
    return _whole_run(launcher, profiler, job, "about 0.4 kB per kernel")


def _rocprof_sys(launcher: Launcher, job: JobShape) -> list[str]:
    profiler = [
        *("env", "ROCPROFSYS_TRACE=ON", "ROCPROFSYS_TIME_OUTPUT=OFF", "ROCPROFSYS_USE_PID=OFF"),
        f"ROCPROFSYS_OUTPUT_PATH={job.folder}",
        f"ROCPROFSYS_OUTPUT_PREFIX=rank-%env{{{_RANK_VARIABLE[launcher]}}}%-",
        *("rocprof-sys-run", "--"),
    ]
    return _whole_run(launcher, profiler, job, "host calls too")


def _whole_run(launcher: Launcher, profiler: Sequence[str], job: JobShape, what: str) -> list[str]:
    """Return the lines for a profiler of AMD that records from the first step to the last."""
    return [
        "# 1. in the training loop: a marker around each step (PyTorch for ROCm sends nvtx ranges to roctx)",
        *_marker_lines(job, capture=False),
        "",
        f"# 2. run; the whole run is recorded, {what}: run few steps",
        *([_CSV] if "csv" in profiler else []),
        *_launch(launcher, profiler, job),
    ]


def _torch(launcher: Launcher, job: JobShape) -> list[str]:
    return [
        "# 1. in the training loop",
        "#    import jitter.record",
        f'#    recorded = jitter.record.torch_profiler("{job.folder}", steps=range({job.first}, {job.last + 1}))',
        "#    with recorded as profiler:",
        "#        for batch in loader:",
        "#            train_step(batch)",
        "#            profiler.step()",
        "",
        f"# 2. run; {_steps(job)} are recorded, about 0.2 kB per kernel (compressed), without stacks",
        *_launch(launcher, [], job),
    ]


def _jax(launcher: Launcher, job: JobShape) -> list[str]:
    return [
        "# 1. in the training loop",
        f"#    if step == {job.first}:",
        f'#        jax.profiler.start_trace(f"{job.folder}/rank{{jax.process_index()}}")',
        '#    with jax.profiler.StepTraceAnnotation("train", step_num=step):',
        "#        state = jax.block_until_ready(train_step(state, batch))",
        f"#    if step == {job.last}:",
        "#        jax.profiler.stop_trace()",
        "",
        f"# 2. run; {_steps(job)} are recorded, about 0.1 kB per kernel; one process per GPU, or give --rank-map",
        *_launch(launcher, [], job),
    ]


def _vllm(_: Launcher, job: JobShape) -> list[str]:
    folder = shlex.quote(job.folder)
    return [
        "# 1. start the server; before version 0.13 the variable VLLM_TORCH_PROFILER_DIR names the folder",
        f"mkdir -p {folder}",
        f"vllm serve MODEL --tensor-parallel-size {job.gpus} --profiler-config.profiler torch "
        f'--profiler-config.torch_profiler_dir "$(realpath {folder})"',
        "",
        "# 2. under load, record about a second: every rank writes its trace",
        "curl -X POST http://localhost:8000/start_profile; sleep 1; curl -X POST http://localhost:8000/stop_profile",
    ]


def _sglang(_: Launcher, job: JobShape) -> list[str]:
    steps = job.last - job.first + 1
    body = f'{{"output_dir": "{job.folder}", "num_steps": {steps}, "activities": ["CPU", "GPU"]}}'
    return [
        "# 1. start the server",
        f"mkdir -p {shlex.quote(job.folder)}",
        f"python -m sglang.launch_server --model-path MODEL --tp {job.gpus}",
        "",
        f"# 2. under load, record {steps} forward passes: every rank writes its trace",
        f"curl -X POST http://localhost:30000/start_profile -H 'Content-Type: application/json' -d {shlex.quote(body)}",
    ]


def _marker_lines(job: JobShape, *, capture: bool) -> list[str]:
    begin = [f"if step == {job.first}:", "    torch.cuda.profiler.start()"] if capture else []
    end = [f"if step == {job.last}:", "    torch.cuda.profiler.stop()"] if capture else []
    step = ['torch.cuda.nvtx.range_push(f"step{step}-rank{rank}")', "train_step(batch)", "torch.cuda.nvtx.range_pop()"]
    return [f"#    {line}" for line in (*begin, *step, *end)]


def _launch(launcher: Launcher, profiler: Sequence[str], job: JobShape) -> list[str]:
    """Return the command that starts one profiler per worker."""
    python = ["python", *job.program]
    if launcher == "k8s":
        inner = _command(["torchrun", "--nproc-per-node", str(job.gpus)], profiler, job.program)
        listed = ", ".join(f'"{word}"' for word in inner)
        return ["# in the pod template of a PyTorchJob, on a volume that outlives the pod:", f"command: [{listed}]"]
    several = launcher == "torchrun" and job.nodes > 1
    if launcher == "torchrun":
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", _RENDEZVOUS] if several else []
        torchrun = ["torchrun", "--nnodes", str(job.nodes), "--nproc-per-node", str(job.gpus), *rendezvous]
        words = _command(torchrun, profiler, job.program)
    elif launcher == "srun":
        words = ["srun", "--nodes", str(job.nodes), "--ntasks-per-node", str(job.gpus), *profiler, *python]
    else:
        words = ["mpirun", "-np", str(job.nodes * job.gpus), *profiler, *python]
    where = ["# on each node, with the host name of one of them for HEAD_NODE:"] if several else []
    return [*where, f"mkdir -p {shlex.quote(job.folder)}", " ".join(map(_quote, words))]


def _command(torchrun: Sequence[str], profiler: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return a torchrun command; `--no-python` makes it start the profiler in place of Python."""
    if not profiler:
        return [*torchrun, *program]
    return [*torchrun, "--no-python", *profiler, "python", *program]


def _quote(word: str) -> str:
    # braces and percent signs are plain text to a shell unless they hold a comma or dots
    return word if all(char.isalnum() or char in "%{}_-./=,:@+" for char in word) else shlex.quote(word)


def _steps(job: JobShape) -> str:
    return f"steps {job.first} to {job.last}"
