"""`Lake.sql` in a program: the caller's tables can be joined, and no column is a decimal."""

import pandas as pd
import pyarrow as pa
import pytest

import jitter
from jitter.core.errors import UsageError
from jitter.simulate import Job, simulate
from tests.support.simulated import ingest_run

RACKS = pa.table({"host": ["node0000", "node0001"], "rack": ["a", "b"]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job = Job(ranks=4, steps=2, kernels=20, gpus_per_node=2)
    return ingest_run(simulate(job, []), tmp_path_factory.mktemp("frames"), "nsys")


def test_variables_of_the_caller_are_tables(lake: "jitter.Lake") -> None:
    weights = pd.DataFrame({"rank": [0, 1, 2, 3], "weight": [1, 2, 3, 4]})
    rows = lake.sql(
        "select rack, sum(weight) as weight from ranks join RACKS using (host) join weights using (rank) "
        "group by rack order by rack",
        arrow=True,
    ).to_pylist()
    assert rows == [{"rack": "a", "weight": 3}, {"rack": "b", "weight": 7}]
    assert list(weights.columns) == ["rank", "weight"]  # unchanged


def test_a_relation_goes_before_a_variable_of_its_name(lake: "jitter.Lake") -> None:
    ranks = pd.DataFrame({"rank": [99]})
    assert lake.sql("select count(*) as ranks from ranks", arrow=True).to_pylist() == [{"ranks": 4}]
    assert len(ranks) == 1


def test_other_variables_are_no_tables(lake: "jitter.Lake") -> None:
    numbers = [1, 2]
    with pytest.raises(UsageError, match="numbers does not exist"):
        lake.sql("select * from numbers", arrow=True)
    assert numbers


def test_columns_are_whole_numbers_or_floats(lake: "jitter.Lake") -> None:
    large = 2**127 - 1
    found = lake.sql(f"select sum(duration_ns) as a, 1.5 as b, {large} as c from kernels", arrow=True)
    assert [str(field.type) for field in found.schema] == ["int64", "double", "double"]
    assert found.to_pylist()[0]["b"] == 1.5
    assert found.to_pylist()[0]["c"] == pytest.approx(large)
