"""The README's promises about `import jitter`."""

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import jitter
from jitter.core.errors import LakeError, UsageError
from tests.support.report_lakes import report_lake, step_rows


@pytest.fixture
def lake(small_lake: Path) -> jitter.Lake:
    return jitter.open(small_lake)


def test_all_is_the_whole_api():
    assert dir(jitter) == sorted(jitter.__all__)
    for name in jitter.__all__:
        assert getattr(jitter, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        jitter.Nothing  # noqa: B018


def test_the_recorder_needs_no_import_of_its_own():
    code = "import jitter; print(jitter.record.torch_profiler.__name__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == "torch_profiler\n"


@pytest.mark.parametrize("name", sorted({name for name in jitter.__all__ if not name.startswith("_")} - {"record"}))
def test_help_names_and_describes(name: str):
    text = pydoc.plain(pydoc.render_doc(getattr(jitter, name)))
    assert f"{name}(" in text
    assert getattr(jitter, name).__doc__.strip()


@pytest.mark.parametrize(
    "name", [n for n in dir(jitter.Lake) if not n.startswith("_") and callable(getattr(jitter.Lake, n))]
)
def test_every_method_has_a_docstring(name: str):
    assert getattr(jitter.Lake, name).__doc__


def test_a_short_repr(lake: jitter.Lake, small_lake: Path):
    assert repr(lake) == f"<Lake '{small_lake}': 3 ranks, 3 steps>"


def test_a_step_by_number_or_key(lake: jitter.Lake):
    key = lake.step_keys[1]
    assert lake.table("gap", key.step, arrow=True).equals(lake.table("gap", key, arrow=True))
    assert lake.table("gap", key.step, arrow=True).equals(lake.table("gap", key.step, key.epoch, arrow=True))
    assert lake.metrics(key).rows.equals(lake.metrics(key.step).rows)
    assert lake.diagnose([key.step]).steps == lake.diagnose([key]).steps
    assert [step.key for step in lake.diagnose([key.step]).steps] == [key]
    with pytest.raises(UsageError, match="no step 7"):
        lake.diagnose([7])


def test_dependencies_without_a_whole_step(tmp_path: Path):
    """Ranks whose every step is cut have no program."""
    rows = {rank: {(1, 0): step_rows(rank, 0)[:5]} for rank in range(2)}
    lake = report_lake(tmp_path / "lake", rows, cut=[(0, 0), (1, 0)])
    with pytest.raises(LakeError, match="no rank recorded a whole step"):
        lake.dependencies()


def test_arrow_and_pandas_tables_agree(lake: jitter.Lake):
    frame = lake.table("ttke", 2001, deviation=True).reset_index()
    arrow = lake.table("ttke", 2001, deviation=True, arrow=True)
    assert arrow.column_names == list(frame.columns)
    assert arrow.num_rows == len(frame)
    for name in arrow.column_names:
        assert frame[name].astype(object).where(frame[name].notna(), None).tolist() == arrow[name].to_pylist()


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("select count(*) as n from kernels where rank = ? and step = ?", [1, 2001]),
        ("select count(*) as n from kernels where rank = $1 and step = $2", [1, 2001]),
        ("select count(*) as n from kernels where rank = $rank and step = $step", {"rank": 1, "step": 2001}),
    ],
)
def test_sql_with_parameters(lake: jitter.Lake, text: str, parameters):
    wanted = lake.sql("select count(*) as n from kernels where rank = 1 and step = 2001", arrow=True)
    assert lake.sql(text, parameters, arrow=True).equals(wanted)
    assert wanted["n"].to_pylist()[0] > 0


def test_a_parameter_is_missing(lake: jitter.Lake):
    with pytest.raises(UsageError):
        lake.sql("select ?", [], arrow=True)


@pytest.mark.parametrize("executor", [None, jitter.LocalExecutor(), jitter.PoolExecutor(2), jitter.PoolExecutor()])
def test_executors_give_the_same_diagnosis(small_lake: Path, executor):
    assert jitter.open(small_lake).diagnose(executor=executor) == jitter.open(small_lake).diagnose()


def test_a_pool_without_workers():
    with pytest.raises(UsageError, match="at least one worker"):
        jitter.PoolExecutor(0)


def test_a_diagnosis_in_a_script_without_a_main_guard(small_lake: Path):
    script = (
        "import sys, jitter\nprint(len(jitter.open(sys.argv[1]).diagnose(executor=jitter.PoolExecutor(2)).steps))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, small_lake], capture_output=True, text=True, check=True, timeout=100
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
