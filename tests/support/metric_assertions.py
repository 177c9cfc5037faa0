"""Comparisons of a lake's answers with the oracle and with a simulation's truth, to the nanosecond."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pytest

import jitter
from tests.support.kernel_truth import KernelTruth
from tests.support.oracles import metrics as oracle

DEVIATION = 1e-3
"""How far a deviation, a float, may be off, in ns."""


def assert_matches_oracle(lake: "jitter.Lake") -> dict[tuple[oracle.StepKey, int], oracle.CohortStep]:
    """Every row, deviation, moment, step time and extreme of the lake is the oracle's; returns the oracle's."""
    lake.metrics = cache(lake.metrics)  # type: ignore[method-assign]  # the run asks for the same steps again
    measured = oracle.measure(lake.root)
    assert lake.cohorts == dict(sorted(oracle.cohorts(oracle.lake_steps(lake.root)).items()))
    for key in lake.step_keys:
        found = lake.metrics(key.step, key.epoch)
        wanted = {cohort: one for (step, cohort), one in measured.items() if step == tuple(key)}
        assert {
            cohort for cohort, one in found.alignments.items() if one.moments_ns or one.method != "none"
        } <= wanted.keys()
        assert wanted.keys() <= found.alignments.keys()
        rows = found.rows.to_pylist()
        by_place = {(row["rank"], row["position"]): row for row in rows}
        assert len(by_place) == len(rows)
        assert by_place.keys() == {place for one in wanted.values() for place in one.rows}
        for cohort, one in wanted.items():
            _assert_alignment(found.alignments[cohort], one)
            means = {metric: oracle.means(one, metric) for metric in oracle.METRICS}
            for place, want in one.rows.items():
                row = by_place[place]
                got = {name: row.get(name, row.get(f"{name}_ns")) for name in want}
                assert got == want, (key, place)
                assert row["cohort"] == cohort
                for metric in oracle.METRICS:
                    deviation = row[f"{metric}_deviation_ns"]
                    if want["kernel_index"] is None or want[metric] is None:
                        assert deviation is None, (key, place, metric)
                    else:
                        exact = want[metric] - means[metric][want["kernel_index"]]
                        assert deviation == pytest.approx(float(exact), abs=DEVIATION), (key, place, metric)
    _assert_readings(lake, measured)
    return measured


def _assert_alignment(found: Any, one: oracle.CohortStep) -> None:
    assert found.method == one.method
    assert found.unsynchronised == one.unsynchronised
    assert found.kernel_index == one.aligned_on
    assert found.moments_ns.keys() == one.moments.keys()
    shifts = {found.moments_ns[rank] - ns for rank, ns in one.moments.items()}
    assert len(shifts) <= 1  # of wall clock only differences have a meaning
    assert one.method != "collective" or shifts == {0}


def _assert_readings(lake: "jitter.Lake", measured: Mapping[Any, oracle.CohortStep]) -> None:
    for reading in lake.ttke_readings():
        one = measured.get((tuple(reading.step), reading.cohort)) or oracle.CohortStep()
        ranks = sorted({rank for rank, _ in one.rows})
        last = oracle.last_kernel(one) if ranks else None
        late = {} if last is None else {rank: _ttke_at(one, rank, last) for rank in ranks}
        if len(ranks) < 2 or last is None or None in late.values():
            assert (reading.min_rank, reading.max_rank, reading.deviation_ns, reading.magnitude_ns) == (None,) * 4
            continue
        assert reading.last_index == last
        mean = sum(late.values()) / len(late)
        assert late[reading.max_rank] == max(late.values())
        assert late[reading.min_rank] == min(late.values())
        assert reading.deviation_ns == pytest.approx({rank: ns - mean for rank, ns in late.items()}, abs=DEVIATION)
        assert reading.magnitude_ns == reading.deviation_ns[reading.max_rank]


def _ttke_at(one: oracle.CohortStep, rank: int, last: int) -> int | None:
    """At the last of its own indexed main-stream kernels up to k*; None if it has none, or that is unknown."""
    upto = [
        (row["kernel_index"], row["ttke"])
        for (of, _), row in one.rows.items()
        if of == rank and row["on_main"] and row["kernel_index"] is not None and row["kernel_index"] <= last
    ]
    return max(upto, default=(0, None))[1]


def assert_matches_truth(
    lake: "jitter.Lake", truth: Mapping[tuple[int | None, int, int], Iterable[KernelTruth]]
) -> None:
    """The lake has exactly these steps and ranks, and every kernel's index and metrics to the nanosecond."""
    expected: dict[tuple[int | None, int], dict[int, list[KernelTruth]]] = {}
    for (epoch, step, rank), kernels in truth.items():
        expected.setdefault((epoch, step), {})[rank] = list(kernels)
    assert [tuple(key) for key in lake.step_keys] == sorted(expected)
    for (epoch, step), ranks in expected.items():
        found: dict[int, list[tuple[Any, ...]]] = {}
        for row in lake.metrics(step, epoch).rows.to_pylist():
            found.setdefault(row["rank"], []).append(
                (
                    row["kernel_index"],
                    row["kernel_name"],
                    not row["on_main"],
                    row["duration_ns"],
                    row["gap_ns"],
                    row["ttke_ns"],
                    row["launch_latency_ns"],
                )
            )
        assert found.keys() == ranks.keys()
        for rank, kernels in ranks.items():
            assert found[rank] == [tuple(kernel) for kernel in kernels], (epoch, step, rank)
