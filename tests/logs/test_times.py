"""The zone of a log's times that state none, by when its file was modified."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitter.logs import parse
from jitter.logs.times import YEARLESS

FIRST = datetime(2026, 12, 31, 22, 0, 3, tzinfo=UTC)
NVIDIA_SMI = ("timestamp, index, clocks.current.sm [MHz]\n", "{:%Y/%m/%d %H:%M:%S}.000, 0, 1980 MHz\n", 5)
SYSLOG = ("", "{:%b %e %H:%M:%S} node7 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n", 40)
CTIME = ("", "[{:%a %b %e %H:%M:%S %Y}] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n", 5)
BEHIND_UTC = (
    "2026-12-31T12:00:00Z timestamp, index, clocks.current.sm [MHz]\n",
    "2026-12-31T12:00:00Z {:%Y/%m/%d %H:%M:%S}.000, 0, 1980 MHz\n",
    5,
)
WITH_ZONE = ("", "{:%Y-%m-%dT%H:%M:%S}+02:00 node7 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU fell off.\n", 5)


def first_time(folder: Path, form: tuple[str, str, int], rows: int, written: datetime) -> datetime:
    """When the first row of a log was, by what is read of it; it was modified at `written`."""
    head, line, seconds = form
    path = folder / "node7.log"
    path.write_text(head + "".join(line.format(FIRST + timedelta(seconds=seconds * at)) for at in range(rows)))
    os.utime(path, (written.timestamp(), written.timestamp()))
    (table,) = parse(path).tables.values()
    return datetime.fromtimestamp(table["time_ns"][0].as_py() / 1e9, UTC)


@pytest.mark.parametrize("ahead_h", [-9.5, -8, 0, 1, 5.75, 14])
@pytest.mark.parametrize("form", [NVIDIA_SMI, SYSLOG, CTIME, BEHIND_UTC])
def test_a_log_whose_last_line_was_just_written_tells_its_zone(
    tmp_path: Path, form: tuple[str, str, int], ahead_h: float
) -> None:
    ahead, last = timedelta(hours=ahead_h), FIRST + timedelta(seconds=9 * form[2])
    read = first_time(tmp_path, form, 10, last - ahead + timedelta(seconds=form[2] - 1))
    is_year_unknown = form is SYSLOG and not ahead_h
    assert read == (FIRST.replace(year=YEARLESS) if is_year_unknown else FIRST - ahead)


@pytest.mark.parametrize("at", [0, 4, 9])
def test_lines_of_which_nothing_is_read_tell_the_zone_too(tmp_path: Path, at: int) -> None:
    """A kernel log has one line of an error among others."""
    ahead, path = timedelta(hours=9), tmp_path / "kern.log"
    times = [FIRST + timedelta(seconds=40 * line) for line in range(10)]
    others = "{:%b %e %H:%M:%S} node7 kernel: eth0: renamed\n"
    path.write_text("".join((SYSLOG[1] if line == at else others).format(time) for line, time in enumerate(times)))
    written = (times[-1] - ahead + timedelta(seconds=39)).timestamp()
    os.utime(path, (written, written))
    (table,) = parse(path).tables.values()
    assert datetime.fromtimestamp(table["time_ns"][0].as_py() / 1e9, UTC) == times[at] - ahead


@pytest.mark.parametrize(
    ("form", "rows", "late_s"),
    [
        pytest.param(NVIDIA_SMI, 10, 3600 + 11, id="copied later"),
        pytest.param(NVIDIA_SMI, 10, 3600 - 11, id="modified before its last line"),
        pytest.param(NVIDIA_SMI, 10, 20 * 3600, id="no zone is so far behind"),
        pytest.param(NVIDIA_SMI, 1, 3600, id="one line"),
        pytest.param(WITH_ZONE, 10, 3600, id="states its zone"),
    ],
)
def test_else_times_are_as_printed(tmp_path: Path, form: tuple[str, str, int], rows: int, late_s: int) -> None:
    last = FIRST + timedelta(seconds=(rows - 1) * form[2])
    stated = timedelta(hours=2 if form is WITH_ZONE else 0)
    assert first_time(tmp_path, form, rows, last + timedelta(seconds=late_s)) == FIRST - stated


@pytest.mark.parametrize("modified_s", [-(10**11), 3 * 10**11])
def test_a_file_may_be_modified_in_a_year_that_no_date_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modified_s: int
) -> None:
    """As tmpfs holds it."""
    monkeypatch.setattr(Path, "stat", lambda _: SimpleNamespace(st_mtime_ns=modified_s * 10**9))
    assert first_time(tmp_path, NVIDIA_SMI, 10, FIRST) == FIRST
