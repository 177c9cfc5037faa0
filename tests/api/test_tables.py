"""The tables of a lake in Python: pandas by default, Arrow on request, and the numbers of the commands."""

import csv
import io
import json
import re
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter import guide
from jitter.core.errors import UsageError
from tests.support.printed import output_of
from tests.support.simulated import sampled_lake

pytestmark = pytest.mark.usefixtures("computed_once")

README = Path(__file__).parents[2] / "README.md"
RANKS = range(8)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with traces and lakes by the names of README and guide."""
    root = tmp_path_factory.mktemp("tables")
    job = "--ranks 8 --gpus-per-node 4 --steps 6 --first-step 2000 --kernels 40"
    sampled_lake(root, f"{job} --fault cpu_stall:rank=5,step=2003,kernel=17,ms=3")
    for name in ("jitter-lake", "before-lake"):
        (root / name).symlink_to("lake")
    return root


@pytest.fixture(scope="module")
def lake(place: Path) -> jitter.Lake:
    return jitter.open(place / "jitter-lake")


def python_blocks() -> list[str]:
    """Return the Python of README and of the guide's topic, without the recorder's lines, which need a GPU."""
    texts = [README.read_text("utf-8"), guide.text("python")]
    blocks = ["\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for text in texts]
    return [re.sub(r"(?ms)^with jitter\.record.*?^$", "", block) for block in blocks]


@pytest.mark.parametrize("code", python_blocks())
def test_the_written_lines_work(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert "lake.report(" in code
    exec(code, {"pd": pd, "__name__": "snippet"})
    assert b'content="jitter ' in (place / "page.html").read_bytes()[:2048]


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(output_of(capsys, *words, "--format", "csv"))))


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """Return a frame's values as the command's CSV writes them."""
    texts = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return [["" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in row] for row in texts]


@pytest.mark.parametrize("by", ["size", "group", "rank", "step"])
def test_collectives_are_those_of_the_command(lake: jitter.Lake, by: str, capsys: pytest.CaptureFixture[str]) -> None:
    frame, wanted = lake.collectives(by=by), rows(capsys, "collectives", str(lake.root), "--by", by)
    assert list(frame.columns) == list(wanted[0])
    assert cells(frame) == [list(row.values()) for row in wanted]
    assert len(frame) == {"rank": 8, "step": 6}.get(by, len(frame))


def test_steps_are_those_of_the_command(lake: jitter.Lake, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = rows(capsys, "steps", str(lake.root))
    assert cells(lake.steps()) == [list(row.values()) for row in wanted]
    worst = lake.steps().nlargest(1, "loss_ns").iloc[0]
    assert (worst["step"], worst["max_rank"], worst["kernel_index"], worst["cause"]) == (2003, 5, 17, "cpu_launch")


def test_kernels_are_all_rows_of_the_metrics(lake: jitter.Lake) -> None:
    every = lake.kernels()
    wanted = pd.concat(pd.DataFrame(lake.metrics(key).rows.to_pylist()) for key in lake.step_keys)
    assert every["duration_ns"].sum() == wanted["duration_ns"].sum()
    assert len(every) == len(wanted)
    named = lake.kernels(2003, name="GEMM", ranks=[5])
    assert set(named["rank"]) == {5}
    assert set(named["step"]) == {2003}
    files = [pq.read_table(path).to_pandas() for path in sorted(lake.root.glob("kernels/**/step=2003/rank=5.parquet"))]
    assert len(named) == files[0]["kernel_name"].str.contains("gemm", case=False).sum() > 0
    with pytest.raises(UsageError, match="no regular expression"):
        lake.kernels(2003, name="(")


def test_my_nodes_are_joined(lake: jitter.Lake) -> None:
    nodes = pd.DataFrame({"host": ["node0000", "node0001"], "rack": ["a", "b"]})
    by_rack = lake.losses().merge(nodes, on="host").groupby("rack")["loss_ns"].sum()
    assert by_rack.idxmax() == "b"  # the rack of rank 5
    counted = lake.sql("select rack, count(*) as ranks from ranks join nodes using (host) group by rack order by rack")
    assert counted.to_dict("records") == [{"rack": "a", "ranks": 4}, {"rack": "b", "ranks": 4}]


def test_a_rank_against_the_median(lake: jitter.Lake) -> None:
    (code,) = re.findall(r"(busy = .*)\nbusy\[5\]", guide.text("python"))
    names = {"lake": lake}
    exec(code, names)
    busy = names["busy"]
    excess = busy[5] - busy.median(axis=1)
    kernels = lake.kernels().query("kind == 'compute'")
    for step, of_step in kernels.groupby("step"):
        own = of_step.groupby("rank")["duration_ns"].sum()
        assert excess[step] == own[5] - median(own)
    assert abs(excess[2003]) < 100_000  # rank 5 paused for 3 ms there: its GPU is no slower


def test_arrow_on_request(lake: jitter.Lake) -> None:
    for table in (lake.steps, lake.losses, lake.collectives, lake.waits, lake.self_times, lake.collective_calls):
        rows, frame = table(arrow=True), table()
        assert isinstance(rows, pa.Table)
        assert list(frame.columns) == rows.column_names
        assert len(frame) == rows.num_rows > 0


def test_whole_numbers_stay_whole(lake: jitter.Lake) -> None:
    kinds = lake.sql("select 1 as a, null::bigint as b, true as c, null::boolean as d, null::int as e, 0.5 as f").dtypes
    assert [str(kind) for kind in kinds] == ["int32", "Int64", "bool", "boolean", "Int32", "float64"]
    large = 2**53 + 1
    found = lake.sql(f"select * from (values ({large}::bigint), (null)) t(n)")["n"]
    assert found[0] == large
    assert found[1] is pd.NA
    assert list(lake.sql("select 1 as n, 2 as n").iloc[0]) == [1, 2]  # two columns of one name


def test_steps_by_any_number(lake: jitter.Lake) -> None:
    for chosen in (2003, np.int64(2003), lake.step(2003), [2003], range(2003, 2004)):
        assert set(lake.losses(chosen)["step"]) == {2003}
    assert lake.table().equals(lake.table("ttke", 2003))  # the costliest step
    with pytest.raises(UsageError, match="no table by 'colour'"):
        lake.collectives(by="colour")


def test_the_report_by_suffix(lake: jitter.Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix, words in ((".json", ["--json"]), (".md", ["--markdown"])):
        assert lake.report(tmp_path / f"report{suffix}").read_text() == output_of(capsys, "report", lake.root, *words)
    assert lake.report(str(tmp_path / "page.html")) == tmp_path / "page.html"
    only = json.loads(lake.report(tmp_path / "report.json", steps=2003).read_text())
    assert [step["step"] for step in only["steps"]] == [2003]
    (tmp_path / "mine.md").write_text("notes")
    with pytest.raises(UsageError, match="not written by jitter"):
        lake.report(tmp_path / "mine.md")
    assert lake.report(tmp_path / "mine.md", force=True).read_text().startswith("# jitter report")
    with pytest.raises(UsageError, match="picks no form"):
        lake.report(tmp_path / "report.pdf")


def test_reprs_are_short(lake: jitter.Lake) -> None:
    diagnosis = lake.diagnose()
    for shown in (lake, diagnosis, diagnosis.culprits[0]):
        assert len(repr(shown)) < 200
    assert "rank 5" in repr(diagnosis.culprits[0])
    assert f"6 steps, {len(diagnosis.findings)} findings" in repr(diagnosis)
    assert "Rank 5" in diagnosis.culprits[0]._repr_html_()
    assert {one.is_of_program for one in diagnosis.findings} == {True, False}
    for words in ("Rank 5", "All ranks"):
        assert words in diagnosis._repr_html_()
