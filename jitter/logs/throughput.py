"""What a training program prints of its speed and failures; operators' times of PyTorch's profiler and of rocprof."""

import re
from typing import Final

from jitter.logs.declared import Columns, Patterns, Rule, Values
from jitter.logs.line_parser import Context
from jitter.logs.values import duration_ns

_NUMBER: Final = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_HOST_FILE: Final = re.compile(r"(?:hip|hsa|rccl|roctx|marker|api|sysinfo)\w*_?stats", re.IGNORECASE)
_HOST_NAME: Final = re.compile(r"(?:hip|hsa_|rocblas_|nccl|roctx)[A-Za-z_]\w*")


def _megatron(match: re.Match[str], before: str) -> Values:
    seconds = float(match["ms"]) / 1e3
    batch = match["batch"]
    rate = {"samples_per_s": int(batch) / seconds} if batch and seconds else {}
    return match.groupdict() | {"seconds": seconds} | rate


def _litgpt(match: re.Match[str], before: str) -> Values | None:
    if int(match["step"]) - int(match["at"]) not in (0, 1):
        return None  # a micro batch of several
    return {"step": match["step"], "seconds": float(match["time"]) / (1e3 if match["unit"] == "ms" else 1)}


def _fairseq(match: re.Match[str], before: str) -> Values | None:
    if not float(match["words"]):
        return None
    updates = float(match["rate"]) / float(match["words"])
    return {"step": match["step"], "seconds": 1 / updates, "samples_per_s": updates * float(match["batch"])}


def _of_epoch(match: re.Match[str], before: str) -> Values:
    """Return a step's time, with the number of the step over all epochs, which count from 1."""
    step = match["step"] or (int(match["epoch"]) - 1) * int(match["of"]) + int(match["at"])
    return {"step": int(step), "seconds": match["seconds"]}


def _rocprof(row: Values, context: Context) -> Values:
    on_host = _HOST_FILE.search(context.path.name) or _HOST_NAME.fullmatch(row["Name"])
    share = row.get("Percentage")
    totals: Values = {"self_cpu_ns" if on_host else "self_device_ns": int(row["TotalDurationNs"])}
    return {**totals, "calls": int(row["Calls"]), **({"share": float(share) / 100} if share else {})}


def _operator(row: Values, context: Context) -> Values:
    """Return the times of a row; ROCm prints CUDA, other devices their name."""
    device = next((name for name in row if re.fullmatch(r"Self (?!CPU)[A-Z][A-Za-z]\w*", name)), None)
    share = re.fullmatch(r"(-?\d+(?:\.\d+)?)%", row.get(f"{device or 'Self CPU'} %", ""))
    return {
        "self_cpu_ns": duration_ns(row.get("Self CPU", row.get("Self CPU total", ""))),
        "self_device_ns": duration_ns(row[device]) if device else None,
        **({"share": float(share[1]) / 100} if share else {}),
    }


FORMATS: Final = (
    # DeepSpeed's stage3.py, of rank 0 alone and since the step before; torchtitan's metrics.py, since the beginning
    Patterns(
        "training-log",
        (
            b" allocator cache flushes",
            b" memory allocation retries",
            b"CUDA out of mem",
            b"CUDA error: ",
            b"HIP error: ",
        ),
        (
            Rule(
                r"\b(?P<count>\d{1,9}) pytorch allocator cache flushes since last step",
                "incidents",
                fixed={"kind": "allocator", "rank": 0},
            ),
            Rule(
                r"\b(?P<count>\d{1,9}) (?P<detail>CUDA|XPU|HIP) memory allocation retries",
                "incidents",
                fixed={"kind": "allocator"},
            ),
            Rule(
                r"Error: (?P<manner>(?:CUDA|HIP) (?:out of memory|error: [a-zA-Z][a-zA-Z '()-]{2,100}))",
                "exits",
                fixed={"stated_by": "program"},
            ),
        ),
    ),
    # Hugging Face's Trainer, at its end; several results in a line
    Patterns(
        "train-runtime",
        (b"'train_runtime'", b'"train_runtime"'),
        (
            Rule(
                rf"['\"]train_runtime['\"]?\s*:\s*['\"]?(?P<seconds>{_NUMBER})\b(?:(?:(?!train_runtime).)*?"
                rf"['\"]train_samples_per_second['\"]?\s*:\s*['\"]?(?P<samples_per_s>{_NUMBER})\b)?",
                "throughput",
            ),
        ),
        mention=r"['\"]train_runtime['\"]",
    ),
    Patterns(
        "training-log",
        (
            b"elapsed time per iteration (ms)",
            b"SamplesPerSec=",
            b" tps: ",
            b" wps: ",
            b"img/sec on ",
            b"total images/sec: ",
            b"ms, mfu ",
            b" iter time: ",
            b"train_step_timing in s",
            b", num_updates=",
            b"/s  (",
            b" data_time: ",
            b"Epoch: [",
            b"train.total_ips",
            b'"tracked_stats"',
            b"throughput/",
            b" - timing_s/step:",
            b" step_avg:",
        ),
        (
            # Megatron-LM training.py; its forks put other values between
            Rule(
                r"\biteration +(?P<step>\d+)/ *\d+ \|.{0,500}?"
                rf"elapsed time per iteration \(ms\): +(?P<ms>{_NUMBER})"
                rf"(?:.{{0,500}}?throughput per GPU \(TFLOP/s/GPU\): +(?P<tflops>{_NUMBER}))?"
                r"(?:.{0,500}?global batch size: +(?P<batch>\d+))?",
                "throughput",
                values=_megatron,
            ),
            # DeepSpeed utils/timer.py
            Rule(
                r"(?:global_step=|stop\] \d+/)(?P<step>\d+), RunningAvgSamplesPerSec=[^,]+, "
                rf"CurrSamplesPerSec=(?P<samples_per_s>{_NUMBER})",
                "throughput",
            ),
            # torchtitan components/metrics.py
            Rule(
                r"\bstep: *(?P<step>\d+)  .{0,500}? [tw]ps: +(?P<tokens_per_s>[\d,]+)"
                r"(?:  tflops: +(?P<tflops>[\d.,]+))?",
                "throughput",
            ),
            # verl's console logger: all metrics of a step in one line, numpy's numbers with their type
            Rule(
                r"(?:^|\s)step:(?P<step>\d+) - (?:(?!\sstep:).){0,30000}? - timing_s/step:(?:np\.float\d\d\()?"
                rf"(?P<seconds>{_NUMBER})(?:.{{0,1500}}? - perf/throughput:(?:np\.float\d\d\()?"
                rf"(?P<tokens_per_s>{_NUMBER}))?",
                "throughput",
            ),
            # nanoGPT's train.py: a step of all its micro batches
            Rule(
                rf"(?:^|\s)iter (?P<step>\d+): loss [^,]{{1,20}}, time (?P<ms>{_NUMBER})ms, mfu ",
                "throughput",
                values=lambda match, before: {"step": match["step"], "seconds": float(match["ms"]) / 1e3},
            ),
            # modded-nanogpt's: the mean of the steps so far
            Rule(
                rf"(?:^|\s)step:(?P<step>\d+)/\d+ .{{0,200}}?\bstep_avg:(?P<ms>{_NUMBER})ms",
                "throughput",
                values=lambda match, before: {"step": match["step"], "seconds": float(match["ms"]) / 1e3},
            ),
            # LitGPT: `iter` counts micro batches
            Rule(
                r"\biter +(?P<at>\d+) step +(?P<step>\d+) ?[|:].{0,200}? iter time: "
                rf"(?P<time>{_NUMBER}) ?(?P<unit>m?s)\b",
                "throughput",
                values=_litgpt,
            ),
            # NeMo 2 and 1; after other values
            Rule(
                r"\bglobal_step(?:: |=)(?P<step>\d+)\b.{0,500}?"
                rf"train_step_timing in s(?:: |=)(?P<seconds>{_NUMBER})",
                "throughput",
            ),
            # fairseq; `wps`: words a second of all ranks, `wpb`: words of a step
            Rule(
                rf" wps=(?P<rate>{_NUMBER}), ups=[^,]{{1,40}}, wpb=(?P<words>{_NUMBER}), bsz=(?P<batch>{_NUMBER}), "
                r"num_updates=(?P<step>\d+)",
                "throughput",
                values=_fairseq,
            ),
            # timm's train.py: the last batch, and in brackets the mean
            Rule(
                r"Train: (?P<epoch>\d+) \[ *(?P<at>\d+)/(?P<of>\d+) .{0,200}?"
                rf"Time: (?P<seconds>{_NUMBER})s, +(?P<samples_per_s>{_NUMBER})/s ",
                "throughput",
                values=lambda match, before: (
                    match.groupdict() | {"step": int(match["epoch"]) * int(match["of"]) + int(match["at"])}
                ),
            ),
            # PyTorch's ImageNet example and its many copies: the last batch, and in brackets the mean
            Rule(
                r"Epoch: \[(?P<epoch>\d+)\]\[ *(?P<at>\d+)/(?P<of>\d+)\]\s+(?:Batch )?Time:? +"
                rf"(?P<seconds>{_NUMBER}) \( *{_NUMBER}\)",
                "throughput",
                values=lambda match, before: (
                    {"step": int(match["epoch"]) * int(match["of"]) + int(match["at"]), "seconds": match["seconds"]}
                ),
            ),
            # NVIDIA's DeepLearningExamples
            Rule(rf"\btrain\.total_ips\"? ?: \"?(?P<samples_per_s>{_NUMBER})", "throughput"),
            # detectron2 `iter: 19 …  time: 0.35 …  data_time: …`, mmengine `[1][ 50/7330] …  time: 0.21  data_time: …`
            Rule(
                r"(?:\biter: (?P<step>\d+) |\[(?P<epoch>\d+)\]\[ *(?P<at>\d+)/(?P<of>\d+)\] ).{0,500}?"
                rf" time: (?P<seconds>{_NUMBER}) .{{0,60}}?data_time: ",
                "throughput",
                values=_of_epoch,
            ),
            # MLPerf; what `step` counts differs between programs
            Rule(
                r'"key": "tracked_stats", "value": \{[^{}]{0,200}?"throughput": ' rf"(?P<samples_per_s>{_NUMBER})",
                "throughput",
            ),
            # Composer
            Rule(rf"\bthroughput/samples_per_sec: (?P<samples_per_s>{_NUMBER})", "throughput"),
            Rule(rf"\bthroughput/device/tokens_per_sec: (?P<tokens_per_s>{_NUMBER})", "throughput"),
            # Horovod's synthetic benchmarks; tf_cnn_benchmarks
            Rule(rf"Total img/sec on (?P<ranks>\d{{1,7}}) \w+\(s\): (?P<samples_per_s>{_NUMBER})", "throughput"),
            Rule(rf"(?:^|\s)total images/sec: (?P<samples_per_s>{_NUMBER})", "throughput"),
        ),
    ),
    # `prof.key_averages().table()` of PyTorch's profiler (torch/autograd/profiler_util.py `_build_table`), or a copy
    # with tabs; which columns there are follows the activities
    Columns(
        "key-averages",
        (b"Self CPU %", b"Self CPU total %"),
        "operators",
        {"name": "Name", "calls": "# of Calls|Number of Calls"},
        r"^(?=.*Self CPU)(?=.*%).*Name",
        row=r".*%",
        gaps=r"\t+ *| {2,}",
        values=_operator,
        closes=r"Self \w+ time total: |^\s*$",
    ),
    # `*_stats.csv` of rocprof and rocprofv3; the file's name tells calls on the host from work on the GPU
    Columns(
        "rocprof-stats",
        (b"TotalDurationNs",),
        "operators",
        {"name": "Name"},
        r"Name.{0,40}Calls.{0,40}TotalDurationNs",
        row=r".",
        values=_rocprof,
    ),
)
