"""Kernels of two runs, by documents made by hand: what is aligned with what, and what counts as a change."""

import msgspec
import numpy as np
import pytest

from jitter.comparison.compare_documents import describe_change
from jitter.comparison.document import Document, Environment, Place, StepEntry, Team, TeamProgram, UsualStepEntry
from jitter.comparison.kernel_changes import compare_kernels
from jitter.comparison.rows import AlignedRuns, pair_teams
from jitter.core.names.kernels import COMPUTE

STEPS = 8


def document(kernels: list[tuple[str, float]], seed: int, noise: float = 0.01, **more: object) -> Document:
    """A run whose kernels take these times, with noise over steps; names that begin with * are concurrent."""
    rng = np.random.default_rng(seed)
    names = sorted({name for name, _ in kernels})
    shape = more.pop("shape", None)
    team = Team(
        ranks=(0, 1),
        places=tuple(Place(names.index(name), name.startswith("*"), shape) for name, _ in kernels),
        copies=(),
        steps=tuple(range(STEPS)),
        times_ns=tuple(tuple(round(time * (1 + noise * z)) for z in rng.standard_normal(STEPS)) for _, time in kernels),
    )
    step_ns = more.pop("step_ns", 10**7)
    steps = tuple(StepEntry(None, n, None if n == 0 else step_ns, None) for n in range(STEPS))
    given = {
        "kind": "jitter baseline",
        "schema_version": 1,
        "jitter_version": "0",
        "label": f"run{seed}",
        "digest": f"{seed}",
        "ranks": 2,
        "hosts": (),
        "formats": ("nsys",),
        "marker": "step#",
        "steps": steps,
        "names": tuple(names),
        "teams": (team,),
        "loss_ns": None,
        "loss_fraction": None,
        "rank_entries": (),
        "collectives": (),
        "culprits": (),
        "environment": Environment(),
    }
    return Document(**(given | more))  # type: ignore[arg-type]


def usual_step(kernels: list[tuple[str, float]]) -> UsualStepEntry:
    """The usual step of a run whose kernels follow each other without gaps, launched by a host that is never late."""
    names = sorted({name for name, _ in kernels})
    zeros = (0,) * len(kernels)
    streams = tuple(int(name.startswith("*")) for name, _ in kernels)
    times = tuple(round(time) for _, time in kernels)
    program = TeamProgram(
        names=tuple(names.index(name) for name, _ in kernels),
        kinds=(COMPUTE,) * len(kernels),
        streams=streams,
        threads=zeros,
        self_times=(zeros, zeros, zeros, zeros, times),
        waits=(),
        host_lead_ns=(),
        launch_ns=0.0,
        stream_ns=0.0,
        queue=None,
        interference=0.0,
        has_launches=True,
    )
    return UsualStepEntry((program,), (0,), ())


USUAL = [("gemm", 100_000.0), ("norm", 20_000.0), ("gelu", 30_000.0), ("drop", 10_000.0)] * 6 + [("*reduce", 5e4)]


def aligned(base, new):
    return AlignedRuns(base, new, pair_teams(base, new))


def changes(base, new):
    found = compare_kernels(aligned(base, new))
    return [(one.kernel_name, one.new_kernel_name, one.kind, one.places, one.new_places) for one in found.changes]


def test_equal_runs_have_no_changes():
    for seed in range(20):
        assert changes(document(USUAL, seed), document(USUAL, 100 + seed)) == []


def test_a_slower_kernel_is_found_at_all_its_places():
    slower = [(name, 1.1 * time if name == "gelu" else time) for name, time in USUAL]
    base, new = document(USUAL, 1), document(slower, 2)
    assert changes(base, new) == [("gelu", "gelu", "changed", 6, 6)]
    (one,) = compare_kernels(aligned(base, new)).changes
    assert one.cost_ns == pytest.approx(6 * 3000, rel=0.25)
    assert one.p_adjusted is not None
    assert one.p_adjusted < 0.01
    assert one.kernel_indices == list(range(2, 24, 4))


def test_a_change_within_what_gpus_differ_by_is_none():
    slower = [(name, 1.02 * time if name == "gelu" else time) for name, time in USUAL]
    assert changes(document(USUAL, 1, noise=0.001), document(slower, 2, noise=0.001)) == []


def test_a_fusion_is_one_replacement():
    fused = [("gemm", 100_000.0), ("fused", 40_000.0)] * 3 + USUAL[12:]
    ((name, new_name, kind, places, new_places),) = changes(document(USUAL, 1), document(fused, 2))
    assert (name, new_name, kind) == ("norm + gelu + drop", "fused", "replaced")
    assert (places, new_places) == (9, 3)


def test_another_name_at_the_same_place_is_one_replacement():
    renamed = [("gemm_v2" if name == "gemm" else name, 0.9 * time if name == "gemm" else time) for name, time in USUAL]
    assert changes(document(USUAL, 1), document(renamed, 2)) == [("gemm", "gemm_v2", "replaced", 6, 6)]


def test_kernels_that_are_not_each_other_stand_for_each_other_as_a_whole():
    """A gemm in two parts and a fusion are as many kernels as before: none of them is its neighbour's successor."""
    other = [("gemm_v2", 90_000.0), ("reduce", 9_000.0), ("fused", 40_000.0), ("reduce", 9_000.0)] * 6 + USUAL[24:]
    ((name, new_name, kind, places, new_places),) = changes(document(USUAL, 1), document(other, 2))
    assert (name.count(" + "), new_name.count(" + "), kind, places, new_places) == (23, 23, "replaced", 24, 24)


def test_kernels_that_appear_and_go():
    more = [("cast", 40_000.0), *USUAL]
    assert changes(document(USUAL, 1), document(more, 2)) == [(None, "cast", "appeared", 0, 1)]
    assert changes(document(more, 1), document(USUAL, 2)) == [("cast", None, "went", 1, 0)]


@pytest.mark.parametrize(("loss_ns", "said"), [(0, ", which costs the step nothing"), (-70, ", 70 ns less a step")])
def test_a_change_that_costs_nothing_says_so(loss_ns, said):
    (change,) = compare_kernels(aligned(document(USUAL, 1), document([*USUAL, ("new", 100.0)], 2))).changes
    for kind, what in (("replaced", "is replaced"), ("appeared", "is new")):
        assert describe_change(msgspec.structs.replace(change, kind=kind, loss_ns=loss_ns)) == f"new {what}{said}"


def test_launch_shapes_are_named():
    base = document(USUAL, 1, shape=(8, 1, 1, 128, 1, 1))
    new = document(USUAL, 2, shape=(4, 1, 1, 256, 1, 1))
    found = compare_kernels(aligned(base, new)).shapes
    assert {(one.kernel_name, one.base[0], one.new[3], one.places) for one in found} >= {("gemm", 8, 256, 6)}


def test_several_bases_raise_what_must_be_exceeded():
    slower = [(name, 1.06 * time if name == "gelu" else time) for name, time in USUAL]
    base, new = document(USUAL, 1), document(slower, 2)
    others = [
        document([(n, f * t if n == "gelu" else t) for n, t in USUAL], 10 + at) for at, f in enumerate((0.9, 1.1))
    ]
    assert changes(base, new) != []
    found = compare_kernels(aligned(base, new), bases=others)
    assert found.changes == []


def test_teams_are_paired_by_what_they_run():
    """The stages of a pipeline in another order are still the same stages."""
    first, second = document(USUAL, 1), document([("conv", 1e5), ("relu", 2e4)] * 8, 2)
    names = (*first.names, *second.names)
    moved = tuple(
        msgspec.structs.replace(
            team, places=tuple(Place(place.name + shift, place.concurrent, None) for place in team.places)
        )
        for team, shift in ((first.teams[0], 0), (second.teams[0], len(first.names)))
    )
    base = msgspec.structs.replace(first, names=names, teams=moved)
    new = msgspec.structs.replace(base, teams=moved[::-1])
    assert {(pair.base, pair.new) for pair in pair_teams(base, new)} == {(0, 1), (1, 0)}
    assert changes(base, new) == []
