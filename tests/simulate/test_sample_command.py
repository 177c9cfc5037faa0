"""`jitter sample` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jitter.cli import main
from tests.support.printed import output_of

SMALL = ["--ranks", "2", "--steps", "2", "--kernels", "20"]


def test_traces_and_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "traces"
    assert main(["sample", str(folder), *SMALL, "--fault", "cpu_stall:rank=1,step=1,kernel=3,ms=2"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{folder / 'truth.json'}\n"
    assert "2 nsys traces" in err
    truth = json.loads((folder / "truth.json").read_text())
    assert truth["traces"] == ["rank0.sqlite", "rank1.sqlite"]
    assert {p.name for p in folder.iterdir()} == {*truth["traces"], "truth.json"}
    assert truth["faults"][0]["ranks"] == [1]
    assert truth["faults"][0]["cause"] == "cpu_launch"
    assert truth["job"]["kernels_per_step"] == 20


def test_a_second_call_replaces_the_first_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["sample", str(tmp_path), *SMALL]) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["sample", str(tmp_path), *SMALL, "--format", "kineto"]) == 2
    assert "holds files" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert main(["sample", str(tmp_path), *SMALL, "--option", "container=parquet", "--force"]) == 0
    assert main(["sample", str(tmp_path), *SMALL, "--format", "kineto", "--layout", "rocm", "--force"]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"truth.json", "rank-0.pt.trace.json.gz", "rank-1.pt.trace.json.gz"}


def test_foreign_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mine = tmp_path / "rank0.sqlite"
    mine.write_text("precious")
    assert main(["sample", str(tmp_path), *SMALL]) != 0
    assert "holds files" in capsys.readouterr().err
    assert mine.read_text() == "precious"
    (tmp_path / "truth.json").write_text('{"written_by": "jitter sample", "traces": ["../x", "rank0.sqlite"]}')
    outside = tmp_path.parent / "x"
    outside.write_text("stays")
    assert main(["sample", str(tmp_path), *SMALL, "--format", "kineto", "--force"]) == 0
    assert outside.read_text() == "stays"
    mine.write_text("precious")
    assert main(["sample", str(tmp_path), *SMALL, "--force"]) == 0
    assert mine.read_bytes().startswith(b"SQLite")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--fault", "cpu_stal:rank=1"], "there are cpu_stall, slow_cpu"),
        (["--fault", "slow_gpu:rank=9,factor=2"], "ranks 0 to 1"),
        (["--format", "hdf"], "there are nsys, kineto"),
        (["--layout", "1999"], "there are 2020.3, 2022.4, 2026.2"),
        (["--option", "shuffle"], "--option 'shuffle' is not WORD=VALUE"),
        (["--noise", "2"], "noise is a fraction"),
        (["--shape", "star"], "there are data_parallel, tensor_parallel"),
        (["--syncs", "loss+never"], "no sync is called 'never'"),
    ],
)
def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str):
    assert main(["sample", str(tmp_path / "new"), *SMALL, *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_help_names_faults_and_formats_without_loading_them(capsys: pytest.CaptureFixture[str]):
    assert "cpu_stall:rank=3,step=2,kernel=17,ms=2.5" in output_of(capsys, "sample", "--help")
    assert "  cpu_ops=0" in output_of(capsys, "sample", "--list-options")
    code = "import sys, jitter.cli.commands.sample; sys.exit(bool({'numpy', 'pyarrow', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("format_name", ["nsys", "kineto", "rocpd"])
def test_shapes_and_what_they_are_made_with(tmp_path: Path, format_name: str):
    given = ["--shape", "pipeline", "--stages", "2", "--microbatches", "2", "--launch-queue", "30", "--syncs", "after"]
    more = ["--autotuned", "0.5", "--variable-work", "0.1", "--side-stream", "21", "--cpu-bound", "--kernels", "90"]
    assert main(["sample", str(tmp_path), *SMALL, *given, *more, "--format", format_name]) == 0
    assert [one["ranks"] for one in json.loads((tmp_path / "truth.json").read_text())["stages"]] == [[0], [1]]


def test_help_knows_all_shapes_and_faults(capsys: pytest.CaptureFixture[str]):
    from jitter.simulate.faults import FAULT_KINDS
    from jitter.simulate.shapes import SHAPES

    lines = [" ".join(line.split()) for line in output_of(capsys, "sample", "--help").splitlines()]
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in SHAPES)
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in FAULT_KINDS)


def test_the_simulator_shares_nothing_with_the_analysis():
    code = (
        "import sys, jitter.simulate, jitter.simulate.formats.nsys, jitter.simulate.formats.kineto\n"
        "print(*sorted(m for m in sys.modules if m.startswith('jitter')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stdout.split()
    others = [m for m in loaded if not m.startswith("jitter.simulate")]
    assert others == ["jitter", "jitter._version", "jitter.core", "jitter.core.errors", "jitter.core.files"]
