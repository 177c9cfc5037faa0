"""The notebook display of a lake and of a diagnosis; results as Arrow streams."""

import pyarrow as pa
import pytest

import jitter
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    folder = tmp_path_factory.mktemp("display") / "<lake>"
    fault = Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")
    return ingest_run(simulate(Job(ranks=4, steps=8, kernels=60, seed=3), [fault]), folder, "nsys")


def test_lake_and_diagnosis(lake: "jitter.Lake"):
    before = lake._repr_html_()
    assert "&lt;lake&gt;" in before
    assert "<td>4</td>" in before
    assert "finding" not in before  # nothing is computed for a display
    diagnosis = lake.diagnose()
    shown = diagnosis._repr_html_()
    assert diagnosis.verdict.split()[0] in shown
    for words in ("Rank 2", "late kernel launches", "loss by class", diagnosis.culprits[0].confidence):
        assert words in shown
    screen = lake._repr_html_()
    assert screen.startswith("<pre")
    for words in ("Rank 2", "late kernel launches", "jitter report LAKE -v"):
        assert words in screen


def test_arrow_streams(lake: "jitter.Lake"):
    metrics = lake.metrics(4)
    assert pa.table(metrics).to_pylist() == metrics.rows.to_pylist()
    columns = lake.step_columns(lake.step_keys[0], ["rank", "start_ns"])
    assert pa.table(columns).to_pylist() == columns.table.to_pylist()
