"""`jitter record`: print the commands and lines that record a job."""

from typing import get_args

import click

from jitter.cli.options import numbers_option
from jitter.core.errors import UsageError
from jitter.record.commands import JobShape, Launcher, Profiler, recording_lines


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("profiler", type=click.Choice(get_args(Profiler)))
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--launcher",
    type=click.Choice(get_args(Launcher)),
    default="torchrun",
    show_default=True,
    help="What starts the job's processes.",
)
@numbers_option(
    "--steps",
    metavar="A-B",
    default="100-109",
    show_default=True,
    help="Steps to record.",
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Number of nodes.")
@click.option("--gpus", type=click.IntRange(min=1), default=8, show_default=True, help="GPUs per node.")
@click.option("--folder", metavar="DIR", default="traces", show_default=True, help="Where the recordings go.")
@click.option(
    "--light", is_flag=True, help="nsys: GPU activities and markers alone, no sampling, no calls of the system."
)
def record(
    profiler: Profiler,
    program: tuple[str, ...],
    launcher: Launcher,
    steps: list[int],
    nodes: int,
    gpus: int,
    folder: str,
    light: bool,
) -> None:
    """Print the commands that record a job, with step markers and names that `jitter ingest` understands.

    PROGRAM is the training program with its arguments. Default: train.py. Nothing is run.

    \b
    Examples:
        jitter record torch --launcher torchrun --nodes 2
        jitter record nsys --launcher srun --steps 200-209 train.py --config big.yaml
        jitter record rocprofv3 --launcher mpirun
        jitter record nsys --launcher srun --light
        jitter record sglang --gpus 8
    """
    if steps != list(range(steps[0], steps[-1] + 1)):
        raise UsageError("--steps names steps that are not consecutive", "give A-B")
    if light and profiler != "nsys":
        raise UsageError("--light is for nsys", f"what {profiler} records is printed without it")
    job = JobShape(program or ("train.py",), folder, steps[0], steps[-1], nodes, gpus, light)
    click.echo(recording_lines(profiler, launcher, job), nl=False)
