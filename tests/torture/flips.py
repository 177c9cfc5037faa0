"""One flipped bit in a file of a lake: every answer is as before, or the file is named. Never another answer."""

import random
import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import jitter
import jitter.analysis.diagnosis.answer_cache
from jitter.core.errors import LakeError
from jitter.lake.integrity.verify import verify_lake
from jitter.simulate import Fault, Job, simulate, write
from tests.torture.figures import Figures

PARTS = ("kernels", "host", "times", "sources", "derived/answers", "catalog.sqlite")
QUERY = "select rank, step, sum(duration_ns) as ns, max(kernel_name) as name from kernels group by all order by all"


def flip_bits(flips: int, seed: int) -> Figures:
    """Flip one bit at a time, in the parts of a lake in turn."""
    figures, chance = Figures("flipped bits"), random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(jitter.analysis.diagnosis.answer_cache, "MIN_ACTIVITIES", 0),
    ):
        good, lake = Path(folder, "good"), Path(folder, "lake")
        faults = [Fault.parse("cpu_stall:rank=2,step=2001,kernel=7,ms=1.5")]
        write(simulate(Job(ranks=4, steps=2, kernels=20, first_step=2000, seed=7), faults), Path(folder, "in"), "nsys")
        jitter.ingest([Path(folder, "in")], good, executor=jitter.LocalExecutor())
        jitter.open(good).prepare()
        wanted = answers(good)
        shutil.copytree(good, lake)
        for case in range(flips):
            part = PARTS[case % len(PARTS)]
            files = (
                [good / part]
                if (good / part).is_file()
                else sorted(p for p in (good / part).rglob("*.*") if p.is_file())
            )
            whole = chance.choice(files)
            damaged = lake / whole.relative_to(good)
            bit = chance.randrange(whole.stat().st_size * 8)
            content = bytearray(whole.read_bytes())
            content[bit // 8] ^= 1 << bit % 8
            damaged.write_bytes(content)
            figures.count(*_outcome(lake, damaged, part, bit, wanted))
            shutil.copy2(whole, damaged)
    return figures


def answers(root: Path) -> tuple[object, ...]:
    """The answers of a lake from records, kernels, host events and derived data."""
    lake = jitter.open(root)
    steps = lake.sql("from rank_steps order by all", arrow=True).to_pylist()
    sources = lake.sql("from sources order by all", arrow=True).to_pylist()
    kernels, host = lake.sql(QUERY, arrow=True).to_pylist(), lake.sql("from host order by all", arrow=True).to_pylist()
    return lake.diagnose(), lake.table("gap", 2001).to_dict(), kernels, host, steps, sources


def _outcome(lake: Path, damaged: Path, part: str, bit: int, wanted: tuple[object, ...]) -> tuple[str, str | None]:
    where = f"bit {bit} of {damaged.relative_to(lake)}"
    outcome, failure = "same answers", None
    try:
        if answers(lake) != wanted:
            return f"{part}: another answer", where
        # records are always read; the other primary files may stand behind derived data
        failure = f"{where}: a damaged record is not named" if part == "sources" else None
    except LakeError as error:
        is_named = str(damaged) in error.message and "jitter ingest TRACES -o LAKE" in (error.hint or "")
        is_primary = part in ("kernels", "host", "sources")
        outcome, failure = "named", None if is_named and is_primary else f"{where}: {error}"
    except Exception as error:
        return f"{part}: crash", f"{where}: {error!r}"
    if part != "catalog.sqlite" and [problem.file for problem in verify_lake(lake).problems] != [damaged]:
        failure = f"{where}: not found by verify"
    return f"{part}: {outcome}", failure
