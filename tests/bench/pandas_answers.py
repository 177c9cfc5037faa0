"""The talk's metrics and extremes of some steps in plain pandas, from the lake's files. Compared with by `answers.py`.

python -m tests.bench.pandas_answers LAKE STEP…

For each step: all ranks' files, gap and time to kernel end by groups, then for each metric the table kernels × ranks,
its deviations from the mean, and the ranks with the extremes. No replay, no critical path, no causes.
"""

import sys
from pathlib import Path

import pandas as pd

_COLUMNS = ["rank", "ordinal", "kind", "stream", "start_ns", "end_ns", "duration_ns", "launch_start_ns"]
_MAIN_STREAM = 7


def answer(folder: Path) -> None:
    """Measure one step."""
    files = sorted(folder.glob("rank=*.parquet"))
    rows = pd.concat(pd.read_parquet(file, columns=_COLUMNS, partitioning=None) for file in files)
    rows = rows[rows["kind"] != "memory"].sort_values(["rank", "ordinal"])
    rows["index"] = rows.groupby("rank").cumcount()
    on_main = (rows["kind"] == "compute") & (rows["stream"] == _MAIN_STREAM)
    met = rows[rows["kind"] == "collective"].groupby("rank")["end_ns"].max()
    main = rows[on_main].copy()
    main["gap"] = main["start_ns"] - main.groupby("rank")["end_ns"].shift()
    first = main.groupby("rank").head(1)
    until = first["rank"].map(met) - first["start_ns"]
    main.loc[main.groupby("rank").cumcount() == 0, "gap"] = (until.max() - until).to_numpy()
    main["own"] = main["gap"] + main["duration_ns"]
    rows = rows.merge(main[["rank", "ordinal", "gap", "own"]], on=["rank", "ordinal"], how="left").fillna(
        {"gap": 0, "own": 0}
    )
    rows["ttke"] = rows.groupby("rank")["own"].cumsum()
    rows["launch_latency"] = rows["start_ns"] - rows["launch_start_ns"]
    for metric in ("duration_ns", "gap", "ttke", "launch_latency"):
        table = rows.pivot(index="index", columns="rank", values=metric)
        deviations = table.sub(table.mean(axis=1), axis=0)
        print(metric, deviations.idxmax(axis=1).mode()[0], deviations.idxmin(axis=1).mode()[0], deviations.max().max())


def main(lake: Path, steps: list[int]) -> None:
    """Measure steps, one after the other."""
    for step in steps:
        for folder in lake.glob(f"kernels/**/step={step}"):
            answer(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])
