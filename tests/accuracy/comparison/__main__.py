"""`python -m tests.accuracy.comparison`: all pairs; what went wrong, and what is promised of them."""

import argparse
import sys

from tests.accuracy.comparison.pairs import CHANGED, HEALTHY, PAIRS, score_all
from tests.accuracy.comparison.summary import describe, targets
from tests.accuracy.history import describe_rates


def main() -> int:
    """Print the scores; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy.comparison", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs without a change, and as many with one")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many pairs of each")
    parser.add_argument("--healthy-only", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    numbers = range(given.skip, given.skip + given.pairs)
    seeds = [(HEALTHY + number, False) for number in numbers]
    if not given.healthy_only:
        seeds += [(CHANGED + number, True) for number in numbers]
    scores = []
    for one in score_all(seeds, given.processes):
        scores.append(one)
        if sys.stderr.isatty():
            print(f"\r{len(scores)} of {len(seeds)}", end="", file=sys.stderr, flush=True)
    print(*describe(scores), "", *describe_rates(), sep="\n")
    return 0 if all(target.met for target in targets(scores)) else 1


if __name__ == "__main__":
    sys.exit(main())
