"""Ingestion of trace files into a lake: discover, read, divide into steps, stage, publish."""

from importlib.metadata import entry_points


def worker_modules() -> list[str]:
    """Return the modules that an ingest's worker processes load before they are forked.

    Readers of other packages are loaded when they are needed: an error while loading one would end the fork server.
    """
    points = entry_points(group="jitter.readers")
    # another package's entry point may be invalid, so that it has no module
    return ["jitter.ingestion.convert", *(point.module for point in points if point.value.startswith("jitter."))]
