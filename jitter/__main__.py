"""`python -m jitter`."""

import sys

from jitter.cli import main

if __name__ == "__main__":
    sys.exit(main())
