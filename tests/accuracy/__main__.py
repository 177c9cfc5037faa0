"""`python -m tests.accuracy`: all jobs, in two processes; the table, and the jobs that went wrong."""

import argparse
import sys

from tests.accuracy.cases import JOBS, REPORTED, TUNING, tenth
from tests.accuracy.irregular import cases as irregular_cases
from tests.accuracy.irregular import scoring as irregular_scoring
from tests.accuracy.irregular import table as irregular_table
from tests.accuracy.irregular import waits
from tests.accuracy.scoring import score, score_all
from tests.accuracy.table import misses, table, targets


def main() -> int:
    """Print the table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--generator", choices=("simulator", "irregular", "waits"), default="simulator")
    parser.add_argument("--jobs", type=int, default=None, help="how many simulated jobs")
    parser.add_argument("--seeds", metavar="A-B", help="of irregular jobs: these seeds")
    parser.add_argument("--quick", action="store_true", help="only the tenth that the tests take")
    parser.add_argument("--tuning", action="store_true", help="the seeds that the analysis may be tuned on")
    parser.add_argument("--only", type=int, metavar="SEED", help="one job, with all that was found")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    return _simulator(given) if given.generator == "simulator" else _irregular(given)


def _simulator(given: argparse.Namespace) -> int:
    if given.only is not None:
        for name, value in score(given.only)._asdict().items():
            print(f"{name:12} {value}")
        return 0
    base, jobs = TUNING if given.tuning else REPORTED, given.jobs or JOBS
    seeds = tenth(base, jobs) if given.quick else list(range(base, base + jobs))
    scores = []
    for one in score_all(seeds, given.processes):
        scores.append(one)
        _progress(len(scores), len(seeds))
    print(*misses(scores), "", *table(scores), sep="\n")
    return 0 if all(target.met for target in targets(scores)) else 1


def _irregular(given: argparse.Namespace) -> int:
    kind = waits if given.generator == "waits" else irregular_cases
    base, jobs = kind.TUNING if given.tuning else kind.REPORTED, given.jobs
    jobs = jobs or (kind.JOBS // 10 if given.quick else kind.JOBS)
    seeds = list(range(base, base + jobs))
    if given.seeds:
        first, _, last = given.seeds.partition("-")
        seeds = list(range(int(first), int(last or first) + 1))
    if given.only is not None:
        seeds = [given.only]
    scores = []
    for one in irregular_scoring.score_all(seeds, 1 if len(seeds) == 1 else given.processes, kind.case):
        scores.append(one)
        _progress(len(scores), len(seeds))
    if given.only is not None:
        print(*(f"{name:12} {value}" for name, value in scores[0]._asdict().items()), sep="\n")
        return 0
    print(*irregular_table.misses(scores), "", sep="\n")
    if given.generator == "waits":
        print(*irregular_table.wrong_prices(scores), "", *irregular_table.waits_table(scores), sep="\n")
    else:
        print(*irregular_table.table(scores), sep="\n")
    return 1 if any(one.outcome == "crash" for one in scores) else 0


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
