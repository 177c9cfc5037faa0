"""Run times of trainings in logs beside the traces, and lakes that hold nothing but logs (the talk's job lines)."""

import pytest

import jitter
from jitter.comparison.compare_documents import comparison_document
from jitter.comparison.runs import load_run

GPT_J = (1126.1, 671.8, 568.1)
BIGBIRD = (208.7, 204.7, 203.7)


def lake_of_logs(folder, seconds):
    folder.mkdir()
    for name, value in seconds.items():
        (folder / f"{name}.log").write_text(
            f"step 10\n{{'train_runtime': {value}, 'train_samples_per_second': 36.4}}\n"
        )
    jitter.ingest([folder], folder / "lake")
    return load_run(folder / "lake")


@pytest.mark.parametrize(("times", "ratios"), [(GPT_J, ("1.68", "1.98")), (BIGBIRD, ("1.02", "1.02"))])
def test_the_talks_run_times(tmp_path, times, ratios):
    base, *others = (lake_of_logs(tmp_path / f"run{n}", {"train": value}) for n, value in enumerate(times))
    for other, ratio in zip(others, ratios, strict=True):
        found = comparison_document(jitter.compare(base, other))
        (line,) = found["throughput"]
        assert f"{line['speedup']:.2f}" == ratio
        assert found["verdict"] == "incomparable"
        assert found["sentence"].startswith(
            f"By the logs, train: run time {GPT_J[0] if times is GPT_J else 208.7:,.4g}"
        )
        assert f"{ratio}× as fast" in found["sentence"]


def test_results_are_matched_by_label(tmp_path):
    base = lake_of_logs(tmp_path / "base", {"gptj": 1126.1, "bigbird": 208.7})
    new = lake_of_logs(tmp_path / "new", {"bigbird": 204.7, "gptj": 671.8})
    found = comparison_document(jitter.compare(base, new))["throughput"]
    assert {one["label"]: round(one["speedup"], 2) for one in found} == {"gptj": 1.68, "bigbird": 1.02}


def test_speeds_by_step_are_medians(tmp_path):
    runs = []
    for name, rate in (("base", 100), ("new", 125)):
        folder = tmp_path / name
        folder.mkdir()
        lines = [f"step={at}, skipped=0 iteration {at}/ 20 | elapsed time per iteration (ms): {1000 * 100 / rate:.1f} |"
                 f" global batch size: 64 |" for at in range(1, 20)]  # fmt: skip
        (folder / "train.log").write_text("\n".join(lines))
        jitter.ingest([folder], folder / "lake")
        runs.append(load_run(folder / "lake"))
    (line,) = comparison_document(jitter.compare(*runs))["throughput"]
    assert (line["quantity"], line["base"], line["new"]) == ("step_s", 1.0, 0.8)
    assert (line["speedup"], line["base_seconds"]) == (pytest.approx(1.25), None)
