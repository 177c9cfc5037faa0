"""The notebooks run in any folder from top to bottom, find what the simulator put in, and have their outputs."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

import jitter
from tests.notebooks.outputs import FOLDER, NAMES, TIMED, agree, describe_outputs, stable_text
from tests.support.fuzz_depth import IS_WHOLE, fuzz

MAX_BYTES = 500_000
LIMIT_S = 300
"""Of a cell, on a machine that does other things too; alone a notebook takes well under a minute."""

# run in the notebook's own kernel, before its last cell removes the lake
CHECKS = {
    "1-tour.ipynb": """
        assert [culprit.rank for culprit in diagnosis.culprits] == truth[0]["ranks"]
        assert worst == truth[0]["steps"][0]
        assert began == truth[0]["kernel"]
        assert gaps.loc[began, f"rank_{culprit.rank}"] == gaps.drop(columns="kernel_name").loc[began].max()
        assert losses.groupby("rank")["loss_ns"].sum().idxmax() == culprit.rank
        assert abs(culprit.gain_ns - truth[0]["gain_ns"]) < 0.01 * truth[0]["gain_ns"]
        """,
    "2-case-study.ipynb": """
        assert len(lake.ranks) == 960 and len(lake.step_keys) == 2
        assert max_gpu == culprit.rank == STALLED
        assert diverges == culprit.kernel_index.first == KERNEL
        assert culprit.cause == "cpu_launch" == fault["cause"]
        assert abs(culprit.gain_ns - fault["gain_ns"]) < 0.02 * fault["gain_ns"]
        from tests.support.kernel_truth import kernel_truth
        of_all = kernel_truth(simulated)
        for number, found in late.items():
            for rank in (extremes.loc[number, "min_gpu"], extremes.loc[number, "max_gpu"]):
                index = found.loc[rank, "kernel_index"]
                ttke = [next(k.ttke_ns for k in of_all[1, number, r] if k.kernel_index == index) for r in lake.ranks]
                assert abs(found.loc[rank, "late_ns"] - (ttke[rank] - sum(ttke) / len(ttke))) < 1
        """,
    "3-tensor-parallel.ipynb": """
        assert culprit.rank == SLOW and culprit.cause == fault["cause"]
        assert known["true_loss_ns"].min() > 1e6 and len(known) == 4
        # the talk's view sees the last part of it only, the replay all of it
        assert late["ttke_deviation_us"].max() * 1e3 < 0.05 * truth.loc[STEP, "true_loss_ns"]
        assert (known["replayed_loss_ns"] / known["true_loss_ns"]).between(1.0, 1.12).all()
        assert abs(culprit.gain_ns - fault["gain_ns"]) < 0.02 * fault["gain_ns"]
        of_slow = losses[(losses["rank"] == SLOW) & (losses["class"] == "gpu")]["loss_ns"].sum()
        assert of_slow > 0.9 * losses["loss_ns"].sum()
        """,
    "4-your-own-question.ipynb": """
        every = [pd.read_parquet(path.open("rb")) for path in sorted(root.glob("kernels/**/*.parquet"))]
        assert len(every) == 40 and len(files) == 5
        first, second = (lake.table("gap", 2003)[f"rank_{rank}"] for rank in (one, other))
        assert (differences[2003] == first - second).all()
        assert differences[2003].drop(58).idxmax() == 17
        """,
    "5-sixteen-thousand.ipynb": """
        for kernels, row in measured.iterrows():
            assert row["files"] == MEASURED_RANKS * MEASURED_STEPS and row["traces"] == MEASURED_RANKS
            assert row["rows"] >= row["files"] * kernels
        # on paper, what was measured comes out again
        for kernels in (MEASURED_KERNELS[0], MEASURED_KERNELS[-1]):
            again = on_paper(MEASURED_RANKS, MEASURED_STEPS, kernels)
            assert abs(again["lake bytes, GB"] * 1e9 / measured.loc[kernels, "lake_bytes"] - 1) < 0.2
            assert abs(again["trace bytes, GB"] * 1e9 / measured.loc[kernels, "trace_bytes"] - 1) < 0.2
        assert paper.loc["lake files", "16,384 GPUs"] == 819_200
        assert constants.loc[["trace bytes", "lake bytes"], "a row"].gt(0).all()
        """,
}


def read(name):
    return nbformat.read(FOLDER / name, as_version=4)


def test_every_notebook_is_checked():
    assert sorted(CHECKS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_only_the_public_api_and_the_simulator_are_imported(name):
    code = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
    modules = set(re.findall(r"^\s*(?:from|import)\s+(jitter[\w.]*)", code, re.M))
    assert modules <= {"jitter", "jitter.simulate"}
    assert set(re.findall(r"\bjitter\.(\w+)", code)) - {"simulate"} <= set(jitter.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_small_and_static(name):
    """A code-hosting site shows them: text, tables, PNG; no scripts."""
    assert (FOLDER / name).stat().st_size < MAX_BYTES
    code = [cell for cell in read(name).cells if cell.cell_type == "code"]
    kinds = {kind for cell in code for output in cell.outputs for kind in output.get("data", {})}
    assert kinds <= {"text/plain", "text/html", "image/png"}
    assert "<script" not in (FOLDER / name).read_text("utf-8")
    shows = sum(cell.source.count("show(") for cell in code)
    pictures = sum("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert pictures == shows


def test_temporary_folders_are_left_out_whole_or_cut():
    whole, cut = "file='/tmp/jitter-tour-4juvgj1_/traces'", "file='/var/tmp/jitter-tour-4juv..."
    assert stable_text(whole) == "file='/tmp/jitter-tour/traces'"
    assert stable_text(cut) == "file='/tmp/jitter-tour..."


@pytest.mark.parametrize(
    ("committed", "fresh", "timed", "same"),
    [
        (["loss 1.5 ms"], ["loss  1.5 ms"], False, True),
        (["loss 1.5 ms"], ["loss 1.6 ms"], False, False),
        (["loss 1.5 ms"], ["loss 1.6 ms"], True, True),
        (["loss 1.5 ms"], ["cost 1.5 ms"], True, False),
        (["0.30000000000000004"], ["0.3"], False, True),
        (["figure"], [], False, False),
    ],
)
def test_outputs_are_compared(committed, fresh, timed, same):
    assert agree(committed, fresh, timed=timed) is same


# jupyter's packages warn of their own future; what the notebooks' kernels warn of stays in the kernels
@fuzz
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in NAMES if IS_WHOLE or name != "2-case-study.ipynb"])  # 960 GPUs
def test_a_notebook_runs_finds_the_truth_and_has_its_outputs(name, tmp_path, monkeypatch):
    """Outputs that are not up to date: `make notebooks` writes them."""
    monkeypatch.setenv("TMPDIR", "/tmp")  # long paths cut tables elsewhere
    notebook, committed = read(name), read(name)
    lines = [line.removeprefix(" " * 8) for line in CHECKS[name].strip("\n").splitlines()]
    assert notebook.cells[-1].source == "folder.cleanup()"
    notebook.cells.insert(-1, nbformat.v4.new_code_cell("\n".join(lines)))
    client = NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    del notebook.cells[-2]
    for fresh, kept in zip(notebook.cells, committed.cells, strict=True):
        if fresh.cell_type == "code":
            timed = TIMED in kept.metadata.get("tags", [])
            assert agree(describe_outputs(kept), describe_outputs(fresh), timed=timed), fresh.source
