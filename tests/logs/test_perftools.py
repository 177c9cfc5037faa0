"""HPE's Perftools: the table of accelerator regions, with bars and with counts of copies by size."""

import json

from log_reading import parsed, rows

from jitter.cli import main
from jitter.logs import sniff

# the layout that pat_report prints; the figures of the second table are those of a published training of T5
PLAIN = """\
Table 2:  Time and Bytes Transferred for Accelerator Regions

   Host | Host |    Acc |  Acc |  Acc Copy |  Acc Copy | Events |Function
  Time% | Time |  Time% | Time |        In |       Out |        | PE=HIDE
        |      |        |      | (MiBytes) | (MiBytes) |        |

 100.0% | 0.68 | 100.0% | 0.68 |     3,840 |    118.16 |    216 |Total
|--------------------------------------------------------------------------
|  61.5% | 0.42 |  61.5% | 0.42 |     3,840 |    118.16 |    204 |cudaMemcpy
|  38.5% | 0.26 |  38.5% | 0.26 |        -- |        -- |     12 |cudaLaunch
|==========================================================================
"""
SIZES = """\
Table 1:  Time and Bytes Transferred for Accelerator Regions

  Time% |       Time |    Acc |    Acc |  Acc Copy |  HtoA | HtoA |    AtoH |  Events |Function
        |            |  Time% |   Time |        In |  16<= | 1MiB<= |   CpySz |         |
        |            |        |        | (MiBytes) |  <256 | <16MiB |     <16 |         |
        |            |        |        |           | Count |  Count |   Count |         |

 100.0% | 192.144116 | 100.0% | 344.88 |    854.88 |  80.0 |  192.0 | 6,121.2 | 1,765,354 |Total
|----------------------------------------------------------------------------------------------
|  20.3% |  38.945723 |  70.3% | 242.46 |      0.00 |   0.0 |    0.0 | 6,000.0 | 1,286,371 |python.train
||  3.6% |   6.871981 |  11.2% |  38.49 |        -- |   0.0 |    0.0 |     0.0 |   211,308 |python.validation
"""


def test_regions():
    log = parsed(PLAIN)
    assert sniff(PLAIN.encode()) == "perftools"
    assert log.problems == []
    assert rows(log, "regions", "region", "depth", "seconds", "device_seconds", "share", "events", "bytes_in") == [
        ("Total", 0, 0.68, 0.68, 1.0, 216, 3840 << 20),
        ("cudaMemcpy", 1, 0.42, 0.42, 0.615, 204, 3840 << 20),
        ("cudaLaunch", 1, 0.26, 0.26, 0.385, 12, None),
    ]


def test_copies_by_size():
    log = parsed(SIZES)
    assert rows(log, "copy_sizes", "region", "depth", "direction", "least_bytes", "below_bytes", "copies") == [
        ("Total", 0, "HtoA", 16, 256, 80.0),
        ("Total", 0, "HtoA", 1 << 20, 16 << 20, 192.0),
        ("Total", 0, "AtoH", None, 16, 6121.2),
        ("python.train", 1, "AtoH", None, 16, 6000.0),
    ]
    assert [row[1] for row in rows(log, "regions", "region", "depth")] == [0, 1, 2]


def test_a_damaged_row_loses_itself():
    log = parsed(SIZES.replace("|  20.3% |  38.945723 |", "|  20.3% |"))
    assert rows(log, "regions", "region") == ["Total", "python.validation"]
    assert [str(problem) for problem in log.problems] == ["perftools: 1 line cannot be read (10)"]


def test_the_report_names_reads_of_single_values(tmp_path, capsys):
    (tmp_path / "report.txt").write_text(SIZES)
    assert main(["ingest", str(tmp_path / "report.txt"), "-o", str(tmp_path / "lake")]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "lake"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"].startswith(
        "6,121 copies from the GPU have less than 16 B, 6,000 of them in python.train: reading a value waits for the "
        "GPU each time."
    )
