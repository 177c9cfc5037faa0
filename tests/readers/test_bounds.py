"""Files that are far larger than what they hold: refused or read after a bounded number of bytes."""

import gzip
import time
from pathlib import Path

import pytest

import jitter
from jitter.readers import chrome_trace
from jitter.simulate import Job, simulate, write

TERABYTE = 1 << 40


@pytest.mark.parametrize("form", ["kineto", "nsys", "rocprof-v1"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_hole_of_a_terabyte(form: str, is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The limit of text without an event is scaled to a 32nd."""
    monkeypatch.setattr(chrome_trace, "_MOST_DAMAGE", 8 << 20)
    options = {"zipped": False} if form == "kineto" else {}
    write(simulate(Job(ranks=1, steps=2, kernels=16)), tmp_path / "t", form, **options)
    for path in (tmp_path / "t").glob("*.db"):
        path.unlink()
    path = next(path for path in (tmp_path / "t").iterdir() if path.suffix in (".json", ".sqlite"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if is_cut else content)
    with path.open("r+b") as file:
        file.truncate(TERABYTE)
    begun = time.monotonic()
    report = jitter.ingest(path, tmp_path / "lake", rank=0)
    assert time.monotonic() - begun < 60
    assert "bug" not in "".join(map(str, report.refused))
    if is_cut:
        assert report.refused or report.added[0].problems


def test_a_gzip_file_is_refused_by_what_is_read(tmp_path: Path):
    """The whole file is within the ratio; its beginning is not."""
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1000.5,"dur":3.2},\n'
    path = tmp_path / "rank0.pt.trace.json.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b'{"schemaVersion":1,"traceEvents":[')
        for _ in range(100):
            file.write(event * 10_000)
    with path.open("ab") as file:
        file.write(bytes(1 << 20))
    (error,) = jitter.ingest(path, tmp_path / "lake").refused
    assert "unpack to more than 6" in str(error)
