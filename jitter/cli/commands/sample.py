"""`jitter sample`: write simulated traces with known faults."""

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from jitter.cli.options import parse_pairs, quiet_option
from jitter.cli.output.stdio import say
from jitter.core.errors import JitterError, UsageError

_TRUTH = "truth.json"
_WRITER = "jitter sample"
_PAYLOAD_LAYOUT = "2026.2"
"""The nsys layout that states sizes of collectives, without which bandwidths are unknown."""

_EXAMPLES = """
\b
Examples:
  jitter sample traces --ranks 16 --fault cpu_stall:rank=3,step=2,kernel=17,ms=2.5
  jitter sample traces --format kineto --layout rocm --fault slow_gpu:rank=5,factor=1.2
  jitter sample traces --layout 2026.2 --option ranks_per_report=8 --option shuffle=yes
  jitter sample traces --ranks 960 --steps 50 --kernels 903 --first-step 2000 \\
      --fault late_start:ranks=8-15+180,every=10,ms=6

\b
Faults (KIND:WORD=VALUE,…); rank, step or kernels also as 0-7+12:
  cpu_stall       rank kernel ms       the CPU pauses before launching a kernel
  slow_cpu        rank factor kernels  launches take longer
  slow_gpu        rank factor kernels  kernels take longer
  gpu_pause       rank kernel ms       the GPU pauses before it begins a kernel
  slow_copies     rank factor          copies between host and GPU take longer
  late_start      rank ms loading      the step begins late (loading=no: outside the data-loading range)
  late_end        rank ms              the CPU pauses between the step's last launch and its end
  unequal_work    rank factor kernels  larger launch shapes, longer kernels
  extra_kernel    rank kernel ms       a kernel that only this rank runs
  missing_kernel  rank kernel          a kernel that only this rank lacks
  slow_collective factor               collectives take longer, for all ranks
  slow_link       rank factor          collectives of all groups with the rank take longer
  pause           every ms [rank]      each rank's CPU pauses in every Nth step, one rank after another
  With each: step (default: all), every=N (steps that N divides). With a factor also drift=yes: it grows over the run.

\b
Shapes (--shape):
  data_parallel   all-reduces of gradients overlap the backward; one sync a step
  tensor_parallel blocking all-reduces in every layer
  sharded         parameters all-gathered a layer ahead, gradients reduce-scattered behind
  tensor_data     tensor-parallel groups of neighbours, gradients all-reduced across them
  expert          two blocking all-to-alls a layer among neighbours, gradients all-reduced across them
  pipeline        stages of different programs that send and receive micro-batches (1F1B)
"""


def _one_of(registry: str, what: str) -> Callable[[click.Context, click.Parameter, str], str]:
    """Return a callback that refuses names which `registry` (module:mapping) lacks, imported only then."""
    module, name = registry.split(":")

    def check(ctx: click.Context, param: click.Parameter, value: str) -> str:
        known = getattr(import_module(module), name)
        if value not in known:
            raise UsageError(what.format(value), f"there are {', '.join(known)}")
        return value

    return check


def _list_options(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from jitter.simulate.formats import FORMATS, format_options

    for name, what in FORMATS.items():
        click.echo(f"{name}: {what}")
        for line in format_options(name):
            click.echo(f"  {line}")
    ctx.exit()


@click.command(epilog=_EXAMPLES, context_settings={"show_default": True})
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--ranks", default=8, help="Number of GPUs.")
@click.option("--steps", default=4, help="Number of recorded steps.")
@click.option("--kernels", default=300, help="Kernels per step, collectives included.")
@click.option(
    "--format",
    "format_name",
    default="nsys",
    callback=_one_of("jitter.simulate.formats:FORMATS", "traces cannot be written as {!r}"),
    help="Format of the traces; see --list-options.",
)
@click.option("--layout", help="Version of the format; see --list-options.")
@click.option("--option", "options", multiple=True, metavar="WORD=VALUE", help="Option of the format; repeatable.")
@click.option(
    "--list-options",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_options,
    help="List the formats and their options.",
)
@click.option("--fault", "faults", multiple=True, metavar="KIND:…", help="A fault, see below; repeatable.")
@click.option("--seed", default=0, help="Seed of the noise: the same seed gives the same traces.")
@click.option("--gpus-per-node", default=8)
@click.option("--first-step", default=0, help="Number of the first recorded step.")
@click.option("--epoch", default=1, help="Epoch in markers of style talk.")
@click.option(
    "--marker",
    type=click.Choice(["talk", "profiler", "iteration", "none"]),
    default="talk",
    help="Text of the step markers.",
)
@click.option("--noise", default=0.02, help="Relative standard deviation of GPU durations.")
@click.option(
    "--shape",
    default="data_parallel",
    callback=_one_of("jitter.simulate.shapes:SHAPES", "no shape is called {!r}"),
    help="Parallelism of the job, see below.",
)
@click.option("--tensor", type=int, help="Ranks of a tensor-parallel group (shape tensor_data).")
@click.option("--stages", type=int, help="Pipeline stages (shape pipeline).")
@click.option("--microbatches", type=int, help="Micro-batches per step (shape pipeline).")
@click.option("--experts", type=int, help="Ranks of an expert group (shape expert).")
@click.option("--cpu-bound", is_flag=True, help="Make the CPU slower than the GPU throughout.")
@click.option("--launch-queue", type=int, metavar="N", help="Limit the launch queue to N launches.")
@click.option("--syncs", default="", show_default=False, help="Where the CPU waits for the GPU: loss+before+after.")
@click.option("--variable-work", default=0.0, help="Vary the input size by this fraction.")
@click.option("--autotuned", default=0.0, help="Fraction of matrix kernels that differ between ranks.")
@click.option("--side-stream", type=int, metavar="STREAM", help="Run a third of the compute kernels on this stream.")
@click.option(
    "--evidence", is_flag=True, help="Write the job's logs too: a bandwidth benchmark, NCCL's debug log, GPU clocks."
)
@click.option("--force", is_flag=True, help="Write into a folder with files, in place of those of an earlier call.")
@quiet_option
def sample(
    folder: Path,
    format_name: str,
    layout: str | None,
    options: tuple[str, ...],
    faults: tuple[str, ...],
    evidence: bool,
    force: bool,
    quiet: bool,
    syncs: str,
    **job: Any,
) -> None:
    """Write simulated traces of a training job into DIR, and truth.json with the findings to expect."""
    from jitter.simulate import Fault, Job, simulate

    given: dict[str, Any] = {**parse_pairs(options, "--option", "WORD=VALUE", "see --list-options")}
    if layout is not None:
        given["layout"] = layout
    elif evidence and format_name == "nsys":
        given.setdefault("layout", _PAYLOAD_LAYOUT)
    run = simulate(Job(**job, syncs=frozenset(filter(None, syncs.split("+")))), [Fault.parse(text) for text in faults])
    for name in _written_before(folder, force):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    others = _names_in(folder)
    # SQLite would only report that it cannot open a file
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise JitterError(f"{folder} is not writable", "choose another folder")
    paths = _write(run, folder, format_name, given, quiet)
    logs: list[Path] = []
    if evidence:
        from jitter.simulate import write_logs

        logs = write_logs(run, folder)
    truth = folder / _TRUTH
    _write_truth(run, truth, format_name, _names_in(folder) - others | {path.name for path in [*paths, *logs]})
    click.echo(truth)
    and_logs = f" and {len(logs)} logs" if logs else ""
    say(f"{len(paths)} {format_name} traces{and_logs} of {run.job.ranks} ranks in {folder}")


def _names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != _TRUTH} if folder.is_dir() else set()


def _written_before(folder: Path, force: bool) -> set[str]:
    """Return the files that an earlier call wrote here; raise `UsageError` for a folder with files, unless `force`."""
    import json

    there = _names_in(folder)
    if not force and (there or (folder / _TRUTH).exists()):
        raise UsageError(f"{folder} holds files", "choose another folder, or add --force to write anew")
    try:
        truth = json.loads((folder / _TRUTH).read_text())
        return set(truth["traces"]) & there if truth["written_by"] == _WRITER else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _write(run: Any, folder: Path, format_name: str, given: dict[str, Any], quiet: bool) -> list[Path]:
    import sys

    from jitter.simulate import write

    if quiet or not sys.stderr.isatty():
        return write(run, folder, format_name, **given)
    with click.progressbar(length=run.job.ranks, label="ranks", file=sys.stderr) as bar:
        return write(run, folder, format_name, bar.update, **given)


def _write_truth(run: Any, path: Path, format_name: str, names: set[str]) -> None:
    from jitter.core.files import write_text
    from jitter.core.formatting import format_json
    from jitter.simulate import truth_document

    document = {"written_by": _WRITER, "format": format_name, **truth_document(run), "traces": sorted(names)}
    write_text(path, format_json(document))
