"""Torture jitter and print figures.

    python -m tests.torture [--quick] [--seed N] [--only SECTION]

The whole takes hours; `--quick`, which the tests run, half a minute. Exits with 1 if anything failed.
"""

import argparse
import sys

from tests.torture.sections import SECTIONS, torture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(SECTIONS))
    parser.add_argument("--cases", type=int, help="cases of each section, instead of its own number")
    given = parser.parse_args()
    failures: list[str] = []
    for figures in torture([given.only] if given.only else list(SECTIONS), given.quick, given.seed, given.cases):
        print(figures, flush=True)
        print(*(f"  {failure}" for failure in figures.failures[:20]), sep="\n", end="\n" if figures.failures else "")
        failures += figures.failures
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
