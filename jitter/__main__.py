"""`python -m jitter`."""

from jitter.cli import run

if __name__ == "__main__":
    run()
