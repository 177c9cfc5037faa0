"""Compile every loop for any processor of this architecture: `python -m jitter.packaging.compile_loops FOLDER`.

Small simulated jobs are analyzed as a user would, so the loops are compiled for the types of real reports. A test
analyzes other jobs and fails if one of them still compiles anything.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from jitter.cli import cli
from jitter.core.numeric.compilation import WORTH_COMPILING, compile_loops

JOBS: Final = (
    "--fault slow_gpu:rank=2,factor=1.2",
    "--shape tensor_data --tensor 2 --side-stream 20 --fault cpu_stall:rank=1,step=2,kernel=7,ms=5",
    "--shape pipeline --stages 4 --microbatches 2 --autotuned 0.3 --fault slow_link:rank=3,factor=4",
    "--shape expert --experts 2 --launch-queue 16 --fault missing_kernel:rank=1,kernel=9",
    "--format kineto --syncs loss --variable-work 0.3 --fault late_start:rank=3,ms=4",
)
"""Options of `jitter sample`: every way in which the analysis goes through a step."""


def compile_all_loops(jobs: Iterable[str] = JOBS) -> None:
    """Simulate, ingest and report each job, with compiled loops however small it is."""
    compile_loops(WORTH_COMPILING)
    with TemporaryDirectory() as place:
        for number, options in enumerate(jobs):
            traces, lake = f"{place}/traces{number}", f"{place}/lake{number}"
            sizes = "--ranks 4 --steps 5 --kernels 60 --gpus-per-node 2"
            run("sample", traces, *sizes.split(), *options.split(), "--quiet")
            run("ingest", traces, "-o", lake, "--quiet")
            run("report", lake, "-o", f"{place}/report{number}.json")
        run("compare", f"{place}/lake0", f"{place}/lake1", "--json")


def run(*words: str) -> None:
    """Run a command of jitter in this process; raise `click.ClickException` or `JitterError` if it fails."""
    cli.main(list(words), standalone_mode=False)


if __name__ == "__main__":
    from jitter.core.numeric.machine_code import build_into

    with build_into(Path(sys.argv[1])):
        compile_all_loops()
