"""`python -m tests.accuracy`: all jobs, in two processes; the table, and the jobs that went wrong."""

import argparse
import sys

from tests.accuracy.cases import JOBS, REPORTED, TUNING, tenth
from tests.accuracy.scoring import score, score_all
from tests.accuracy.table import misses, table, targets


def main() -> int:
    """Print the table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="how many simulated jobs")
    parser.add_argument("--quick", action="store_true", help="only the tenth that the tests take")
    parser.add_argument("--tuning", action="store_true", help="the seeds that the analysis may be tuned on")
    parser.add_argument("--only", type=int, metavar="SEED", help="one job, with all that was found")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.only is not None:
        scores = [score(given.only)]
        for name, value in scores[0]._asdict().items():
            print(f"{name:12} {value}")
        return 0
    base = TUNING if given.tuning else REPORTED
    seeds = tenth(base, given.jobs) if given.quick else list(range(base, base + given.jobs))
    scores = []
    for one in score_all(seeds, given.processes):
        scores.append(one)
        if sys.stderr.isatty():
            print(f"\r{len(scores)} of {len(seeds)}", end="", file=sys.stderr, flush=True)
    print(*misses(scores), "", *table(scores), sep="\n")
    return 0 if all(target.met for target in targets(scores)) else 1


if __name__ == "__main__":
    sys.exit(main())
