"""What a training program prints of its speed and failures; operators' times of PyTorch's profiler and of rocprof."""

import math
import re
from functools import partial
from typing import Any, Final

from jitter.logs.declared import REAL, Columns, Patterns, Values, rule
from jitter.logs.line_parser import Context
from jitter.logs.values import duration_ns

_HOST_FILE: Final = re.compile(r"(?:hip|hsa|rccl|roctx|marker|api|sysinfo)\w*_?stats", re.IGNORECASE)
_HOST_NAME: Final = re.compile(r"(?:hip|hsa_|rocblas_|nccl|roctx)[A-Za-z_]\w*")


def _step(match: re.Match[str], before: str) -> Values:
    """Return a row's values, with seconds from milliseconds, samples from batches, a step's number over all epochs."""
    stated: dict[str, Any] = match.groupdict()
    if stated.get("ms"):
        stated["seconds"] = float(stated["ms"]) / 1e3
    if stated.get("batch") and stated["seconds"]:
        stated["samples_per_s"] = int(stated["batch"]) / stated["seconds"]
    if stated.get("epoch"):
        stated["step"] = int(stated["epoch"]) * int(stated["of"]) + int(stated["at"])
    return stated


def _litgpt(match: re.Match[str], before: str) -> Values | None:
    is_micro_batch = int(match["step"]) - int(match["at"]) not in (0, 1)  # one of several of a step
    return None if is_micro_batch else _step(match, before)


def _fairseq(match: re.Match[str], before: str) -> Values | None:
    updates = float(match["rate"]) / (float(match["words"]) or math.inf)
    if not 0 < updates < math.inf:
        return None
    return {"step": match["step"], "seconds": 1 / updates, "samples_per_s": updates * float(match["bsz"])}


def _of_epoch(match: re.Match[str], before: str) -> Values:
    """Return the values of `_step` where epochs count from 1."""
    stated = _step(match, before)
    return {**stated, "step": int(stated["step"]) - int(match["of"])} if match["epoch"] else stated


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


_speed: Final = partial(rule, "throughput", values=_step)

FORMATS: Final = (
    # DeepSpeed's stage3.py, of rank 0 alone and since the step before; torchtitan's metrics.py, since the beginning
    Patterns(
        "training-log",
        (
            rule(
                "incidents",
                r"\b<count> pytorch allocator cache flushes since last step",
                b" allocator cache flushes",
                kind="allocator",
                rank=0,
            ),
            rule(
                "incidents",
                r"\b<count> (?P<detail>CUDA|XPU|HIP) memory allocation retries",
                b" memory allocation retries",
                kind="allocator",
            ),
            rule(
                "incidents",
                r"\bThis DataLoader will create (?P<workers>\d{1,6}) worker processes in total\. "
                r"Our suggested max number of worker in current system is (?P<most>\d{1,6})",
                b"This DataLoader will create ",
                kind="load",
                count=1,
                detail="a DataLoader has {workers} worker processes, PyTorch suggests {most} at most",
            ),
            rule(
                "exits",
                r"(?:Error: |^(?=Mem|HW))(?P<manner>(?:CUDA|HIP) (?:out of memory|error: [a-zA-Z][a-zA-Z '()-]{2,100})"
                r"|(?:Memory access fault|HW Exception) by GPU node-\d{1,4})",
                *(b"CUDA out of mem", b"CUDA error: ", b"HIP error: ", b" by GPU node-"),
                stated_by="program",
            ),
        ),
    ),
    # Hugging Face's Trainer, at its end; several results in a line
    Patterns(
        "train-runtime",
        (
            _speed(
                r"['\"]train_runtime['\"]?\s*:\s*['\"]?<seconds>\b(?:(?:(?!train_runtime).)*?"
                r"['\"]train_samples_per_second['\"]?\s*:\s*['\"]?<samples_per_s>\b)?",
                *(b"'train_runtime'", b'"train_runtime"'),
            ),
        ),
        mention=r"['\"]train_runtime['\"]",
    ),
    Patterns(
        "training-log",
        (
            # Megatron-LM training.py; its forks put other values between
            _speed(
                r"\biteration +<step>/ *\d+ \|.{0,500}?elapsed time per iteration \(ms\): +<ms>"
                r"(?:.{0,500}?throughput per GPU \(TFLOP/s/GPU\): +<tflops>)?"
                r"(?:.{0,500}?global batch size: +(?P<batch>\d+))?",
                b"elapsed time per iteration (ms)",
            ),
            # DeepSpeed utils/timer.py
            _speed(
                r"(?:global_step=|stop\] \d+/)<step>, RunningAvgSamplesPerSec=[^,]+, CurrSamplesPerSec=<samples_per_s>",
                b"SamplesPerSec=",
            ),
            # torchtitan components/metrics.py
            _speed(
                r"\bstep: *<step>  .{0,500}? [tw]ps: +(?P<tokens_per_s>[\d,]+)(?:  tflops: +(?P<tflops>[\d.,]+))?",
                *(b" tps: ", b" wps: "),
            ),
            # verl's console logger: all metrics of a step in one line, numpy's numbers with their type
            _speed(
                r"(?:^|\s)step:<step> - (?:(?!\sstep:).){0,30000}? - timing_s/step:(?:np\.float\d\d\()?<seconds>"
                r"(?:.{0,1500}? - perf/throughput:(?:np\.float\d\d\()?<tokens_per_s>)?",
                b" - timing_s/step:",
            ),
            # nanoGPT's train.py: a step of all its micro batches
            _speed(r"(?:^|\s)iter <step>: loss [^,]{1,20}, time <ms>ms, mfu ", b"ms, mfu "),
            # modded-nanogpt's: the mean of the steps so far
            _speed(r"(?:^|\s)step:<step>/\d+ .{0,200}?\bstep_avg:<ms>ms", b" step_avg:"),
            # LitGPT: `iter` counts micro batches
            _speed(
                r"\biter +<at> step +<step> ?[|:].{0,200}? iter time: (?:<ms> ?ms|<seconds> ?s)\b",
                b" iter time: ",
                values=_litgpt,
            ),
            # NeMo 2 and 1; after other values
            _speed(
                r"\bglobal_step(?:: |=)<step>\b.{0,500}?train_step_timing in s(?:: |=)<seconds>",
                b"train_step_timing in s",
            ),
            # fairseq; `wps`: words a second of all ranks, `wpb`: words of a step
            _speed(
                rf" wps=(?P<rate>{REAL}), ups=[^,]{{1,40}}, wpb=(?P<words>{REAL}), bsz=(?P<bsz>{REAL}), "
                "num_updates=<step>",
                b", num_updates=",
                values=_fairseq,
            ),
            # timm's train.py: the last batch, and in brackets the mean
            _speed(r"Train: <epoch> \[ *<at>/<of> .{0,200}?Time: <seconds>s, +<samples_per_s>/s ", b"/s  ("),
            # PyTorch's ImageNet example and its many copies: the last batch, and in brackets the mean
            _speed(rf"Epoch: \[<epoch>\]\[ *<at>/<of>\]\s+(?:Batch )?Time:? +<seconds> \( *{REAL}\)", b"Epoch: ["),
            # NVIDIA's DeepLearningExamples
            _speed(r"\btrain\.total_ips\"? ?: \"?<samples_per_s>", b"train.total_ips"),
            # detectron2 `iter: 19 …  time: 0.35 …  data_time: …`, mmengine `[1][ 50/7330] …  time: 0.21  data_time: …`
            _speed(
                r"(?:\biter: <step> |\[<epoch>\]\[ *<at>/<of>\] ).{0,500}? time: <seconds> .{0,60}?data_time: ",
                b" data_time: ",
                values=_of_epoch,
            ),
            # MLPerf; what `step` counts differs between programs
            _speed(
                r'"key": "tracked_stats", "value": \{[^{}]{0,200}?"throughput": <samples_per_s>', b'"tracked_stats"'
            ),
            # Composer
            _speed(r"\bthroughput/samples_per_sec: <samples_per_s>", b"throughput/"),
            _speed(r"\bthroughput/device/tokens_per_sec: <tokens_per_s>", b"throughput/"),
            # Horovod's synthetic benchmarks; tf_cnn_benchmarks
            _speed(r"Total img/sec on <ranks> \w+\(s\): <samples_per_s>", b"img/sec on "),
            _speed(r"(?:^|\s)total images/sec: <samples_per_s>", b"total images/sec: "),
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
