"""The report of a lake of logs alone: it says what limits all ranks alike, and that jitter is unknown."""

import json
from pathlib import Path
from typing import Any

import pytest
from published_logs import (
    BIGBIRD,
    FIRST,
    GPT_J,
    HEADER,
    LUMI_NODES,
    SECOND,
    TABLES,
    affinity_listing,
    as_printed,
    ruled,
)

import jitter
from jitter.cli import main
from tests.support.printed import output_of

NMN0 = "NCCL INFO NET/Socket : Using [0]nmn0:10.120.116.65<0> [1]hsn0:10.253.6.67<0>\n"


def report(folder: Path, text: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Ingest a log alone and return what the report prints."""
    folder.mkdir()
    (folder / "job.log").write_text(text)
    assert main(["ingest", str(folder / "job.log"), "-o", str(folder / "lake")]) == 0
    return output_of(capsys, "report", folder / "lake", *options)


def efficiency(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    document: dict[str, Any] = of_logs(folder, text, capsys)
    assert all(one["scope"] == "job" for one in document["efficiency"])
    return document["efficiency"]


def facts(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    return [(one["kind"], one["words"]) for one in of_logs(folder, text, capsys)["facts"]]


def of_logs(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document = json.loads(report(folder, text, capsys, "--json"))
    assert document["culprits"] == document["steps"] == []
    assert document["loss"] == {"ns": None, "fraction": None}
    assert "holds logs and no traces" in document["verdict"]
    return document


def test_gpt_j_is_communication_bound_and_bigbird_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (found,) = efficiency(tmp_path / "gpt-j", ruled(HEADER, GPT_J), capsys)
    assert (found["kind"], round(found["share"], 4)) == ("communication", 0.9997)
    told = "communication-bound: 99.97% of the GPU time in job.log is in record_param_comms"
    assert found["finding"] == told
    assert efficiency(tmp_path / "bigbird", ruled(HEADER.removesuffix("|# of Calls"), BIGBIRD), capsys) == []


def test_a_complete_table_without_communication_is_compute_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [
        "aten::mm|1%|1.000ms|1%|1.000ms|1.000ms|960.000ms|96.00%|960.000ms|1.000ms|9",
        "nccl:all_reduce|1%|1.000ms|1%|1.000ms|1.000ms|40.000ms|4.00%|40.000ms|1.000ms|9",
    ]
    (found,) = efficiency(tmp_path / "mm", ruled(HEADER, rows), capsys)
    assert (found["kind"], found["share"]) == ("compute_bound", pytest.approx(0.96))


def test_published_bindings_far_from_their_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (found,) = facts(tmp_path / "first", LUMI_NODES + affinity_listing(FIRST), capsys)
    assert found == (
        "placement",
        "12 of 16 ranks run on hardware threads far from their GPUs (all but 2-3,10-11), if a rank uses the GPU of "
        "its number on the node",
    )
    assert facts(tmp_path / "second", LUMI_NODES + affinity_listing(SECOND), capsys) == []


def test_the_wrong_interface_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    *_, found = facts(tmp_path / "lumi", NMN0, capsys)
    assert found == (
        "network",
        "NCCL uses nmn0, which is not of the fabric, beside hsn0: set NCCL_SOCKET_IFNAME to the fabric's interfaces",
    )


@pytest.mark.parametrize("form", ["terminal", "--markdown", "--html"])
def test_every_form_tells_it(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "page.html"
    options = {"terminal": (), "--html": ("-o", str(page))}.get(form, (form,))
    printed = report(tmp_path / "lumi", LUMI_NODES + affinity_listing(FIRST) + NMN0, capsys, *options)
    told = " ".join((page.read_text() if form == "--html" else printed).replace("\\", "").split())
    assert "holds logs and no traces" in told
    assert "12 of 16 ranks run on hardware threads far from their GPUs" in told
    assert "NCCL uses nmn0" in told


def test_a_benchmark_alone_says_nothing_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert efficiency(tmp_path / "frontier", as_printed(next(iter(TABLES.values()))[0]), capsys) == []


def test_no_other_command_takes_logs_for_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report(tmp_path / "lumi", NMN0, capsys)
    lake = str(tmp_path / "lumi" / "lake")
    assert "the loss of the run is unknown" in output_of(capsys, "check", lake, "--max-loss", "5%", exit_code=3)
    assert main(["report", lake, "--steps", "1-2"]) == 2
    assert jitter.open(lake).results().diagnosis.culprits == ()


def test_a_training_log_alone_says_how_fast_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    step = "step: {:2}  loss:  7.1  memory:  9.6GiB(12.2%)  tps: {:,}  tflops: 58.1  mfu: 18.6%\n"
    text = "".join(step.format(at, 9_000 + 1_000 * at) for at in range(3))
    verdict = of_logs(tmp_path / "titan", text, capsys)["verdict"]
    assert verdict.startswith("A step (median of 3): 10,000 tokens/s a GPU, 58.1 TFLOP/s a GPU (titan/job.log).")
    whole = of_logs(tmp_path / "trainer", "{'train_runtime': 568.0539, 'train_samples_per_second': 72.106}\n", capsys)
    assert whole["verdict"].startswith("The training: 568 s, 72.11 samples/s (trainer/job.log).")
    assert not any("rungs" in warning for warning in whole["run"]["warnings"])


def test_logs_of_another_folder_are_refused_with_what_to_type(tmp_path, monkeypatch, capsys):
    """A hang of one job stood beside the other's: both were in the default lake of the working folder."""
    monkeypatch.chdir(tmp_path)
    for folder, line in (("a", "Total img/sec on 8 GPU(s): 100.0"), ("b", "Total img/sec on 8 GPU(s): 300.0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.log").write_text(f"{line} +-25.0\n")
    assert main(["report", "a", "--quiet"]) == 0
    assert main(["report", "a", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["report", "b", "--quiet"]) == 3
    refused = capsys.readouterr()
    assert f"jitter-lake holds logs of {tmp_path / 'a'}, and a lake holds one job" in refused.err
    assert (f"jitter report {tmp_path / 'a'} b" in refused.err, refused.out) == (True, "")
    assert "100 samples/s" not in output_of(capsys, "report", "b", "--quiet", "-L", "other-lake")
    assert main(["report", "b", "--quiet", "--same-job"]) == 0
    assert main(["report", "a", "b", "--quiet"]) == 0


def test_the_screen_tells_what_a_training_log_measured_and_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = (
        "{'train_runtime': 100.2, 'train_samples_per_second': 12.1}\n[rank3]: RuntimeError: CUDA error: unknown error\n"
    )
    printed = report(tmp_path / "log", text, capsys)
    assert printed.startswith("The training: 100 s, 12.1 samples/s")
    assert "logs       Rank 3 failed: CUDA error: unknown error." in printed
