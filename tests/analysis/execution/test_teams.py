"""Teams of a cohort: neighbouring stages of a pipeline apart, ranks with other choices of kernels together."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from jitter.analysis.alignment.program import Example, teams
from jitter.core.names.kernels import COLLECTIVE, COMPUTE

FORWARD, BACKWARD = ("gemm", "gelu", "attention", "norm"), ("gemm_bwd", "gelu_bwd", "attention_bwd", "norm_bwd")


def passes(order: str) -> list[str]:
    """The operations of a middle stage, (F)orward and (B)ackward passes: receive, compute, send."""
    return [name for one in order for name in ("recv", *(FORWARD if one == "F" else BACKWARD), "send")]


def example_of(names: list[str], exchange: str = "send_recv") -> Example:
    """One stream, one thread; what is received and sent are collectives."""
    kinds = [COLLECTIVE if name in {"send", "recv"} else COMPUTE for name in names]
    operations = [exchange if kind == COLLECTIVE else None for kind in kinds]
    return Example(kinds, names, [0] * len(names), [0] * len(names), operations)


def teams_of(*ranks: Example, cohorts: Sequence[int] = (), partners: frozenset[int] = frozenset()) -> list[int]:
    """The teams of ranks that did this; without `cohorts` they are of one. `partners` are those that any rank meets."""
    usual = {rank: (repr(did), b"") for rank, did in enumerate(ranks)}
    examples = dict(zip(usual.values(), ranks, strict=True))
    kinds = {signature: np.array(one.kind, np.int8) for signature, one in examples.items()}
    cohort_of = dict(enumerate(cohorts)) or dict.fromkeys(usual, 0)
    team_of = teams(usual, cohort_of, kinds, examples.__getitem__, partners=lambda _: partners)
    return list(team_of.values())


def team_numbers(*ranks: list[str], exchange: str = "send_recv") -> list[int]:
    return teams_of(*(example_of(names, exchange) for names in ranks))


def test_stages_that_alternate_passes_differently_are_apart():
    second, third = passes("FFFBFBFBBB"), passes("FFBFBFBFBB")
    assert team_numbers(second, second, third, third) == [0, 0, 1, 1]


def test_few_ranks_with_other_variants_of_all_kernels_are_of_the_team_that_does_the_same():
    usual, variants, shorter = (
        example_of([*names, "send"] * times, "all_reduce")
        for names, times in ((("gemm", "gelu"), 5), (("sm90_gemm", "sm90_gelu"), 5), (("sm90_gemm",), 5))
    )
    assert teams_of(usual, usual, variants, cohorts=(0, 0, 1)) == [0, 0, 0]
    assert teams_of(usual, usual, variants, variants, cohorts=(0, 0, 1, 1)) == [0, 0, 1, 1]  # may be two models
    assert teams_of(usual, usual, shorter, cohorts=(0, 0, 1)) == [0, 0, 1]


def test_ranks_that_meet_at_the_same_collectives_are_of_one_team_whatever_their_kernels():
    """Another model of GPU runs other kernels, and more of them: half of the ranks of a job may have it."""
    hopper, ampere = (
        example_of([*names, "send"] * 5, "all_reduce")
        for names in (("sm90_gemm", "gelu"), ("gemm", "splitk", "gelu_8"))
    )
    ranks = (hopper, hopper, ampere, ampere)
    assert teams_of(*ranks, cohorts=(0, 0, 1, 1), partners=frozenset({0, 2})) == [0, 0, 0, 0]
    assert teams_of(*ranks, cohorts=(0, 0, 1, 1), partners=frozenset({2, 3})) == [0, 0, 1, 1]  # two models
    other = example_of(["gemm", "splitk", "send"] * 6, "all_reduce")
    assert teams_of(hopper, hopper, other, cohorts=(0, 0, 1), partners=frozenset({0, 1, 2})) == [0, 0, 1]


def test_another_choice_of_kernels_that_takes_one_more_each_is_of_the_team():
    """A matrix product in two kernels, on one rank or on half of them; of another stage it may be the part."""
    layers = ("gemm", "gelu", "norm", "residual", "send") * 5
    usual = [*layers, "adam"]
    split = [part for name in usual for part in (("gemm_splitk", "reduce") if name == "gemm" else (name,))]
    own, other = example_of(usual, "all_reduce"), example_of(split, "all_reduce")
    assert teams_of(own, own, other, cohorts=(0, 0, 1)) == [0, 0, 0]
    assert teams_of(own, own, other, other, cohorts=(0, 0, 1, 1)) == [0, 0, 0, 0]
    assert teams_of(example_of(usual), example_of(usual), example_of(split), cohorts=(0, 0, 1)) == [0, 0, 1]


def test_the_order_of_passes_without_exchanges_between_ranks_is_no_stage():
    second, third = passes("FFFBFBFBBB"), passes("FFBFBFBFBB")
    assert team_numbers(second, third, exchange="all_reduce") == [0, 0]


def test_more_micro_batches_before_the_same_collectives_are_uneven_work():
    usual, more = ([*FORWARD, *BACKWARD] * times + ["send"] * 2 for times in (4, 5))
    assert team_numbers(usual, usual, more, exchange="all_reduce") == [0, 0, 0]
    assert team_numbers(usual, usual, more) == [0, 0, 1]  # of a stage with an exchange it may be its part


def test_stages_of_one_layer_that_exchange_with_other_neighbours_are_apart():
    """Passes of few kernels that differ in one name: the streams tell which neighbour a stage exchanges with."""
    examples = []
    for order in ("FFFBFBFBBB", "FFBFBFBFBB"):
        names = [name for one in order for name in ("recv", "norm", "attention" if one == "F" else "bwd", "send")]
        streams = [at for one in order for at in ((1, 0, 0, 2) if one == "F" else (2, 0, 0, 1))]
        examples.append(example_of(names)._replace(streams=streams))
    second, third = examples
    assert teams_of(second, second, third, third) == [0, 0, 1, 1]


def test_stages_that_are_graphs_are_apart():
    """The rows of a graph come stream by stream: only the starts tell which passes the exchanges are between."""
    stages = []
    for order in ("FFFBFBFBBB", "FFBFBFBFBB"):
        did = example_of(passes(order))
        streams = [int(kind == COLLECTIVE) for kind in did.kind]
        rows = sorted(range(len(streams)), key=streams.__getitem__)  # stable
        recorded = Example(*([column[row] for row in rows] for column in (did.kind, did.names, streams)), streams)
        collectives = [did.collectives[row] for row in rows]
        stages.append(recorded._replace(collectives=collectives, graphs=[(range(len(rows)), [*map(float, rows)])]))
    second, third = stages
    assert second.by_start().names == passes("FFFBFBFBBB")
    assert teams_of(second, second, third, third) == [0, 0, 1, 1]


def test_other_kernels_at_the_same_places_are_one_team():
    usual = passes("FFFBFBFBBB")
    chosen = [f"{name}_tile64" if name.startswith("gemm") else name for name in usual]
    assert team_numbers(usual, usual, chosen) == [0, 0, 0]


def test_a_send_that_is_launched_earlier_is_no_other_stage():
    usual = passes("FFFBFBFBBB")
    early = list(usual)
    at = next(at for at, (one, two) in enumerate(pairwise(early)) if (one, two) == ("norm", "send"))
    early[at], early[at + 1] = early[at + 1], early[at]
    assert early != usual
    assert team_numbers(usual, usual, early) == [0, 0, 0]


def test_without_launches_collectives_may_run_beside_any_of_the_work():
    """All-gathers on a stream of their own run ahead of a rank whose host is late: the program is the same."""
    examples = []
    for order in ("gather A B gather C D gather E F", "gather gather gather A B C D E F"):
        names = order.split()
        one = example_of([f"k{name}" for name in names])._replace(
            kind=[COLLECTIVE if name == "gather" else COMPUTE for name in names],
            collectives=["all_gather" if name == "gather" else None for name in names],
            streams=[int(name == "gather") for name in names],
            starts_ns=list(range(len(names))),
        )
        examples.append(one)
    assert teams_of(*examples) == [0, 0]
    launched = [Example(*([*column] * 4 for column in one[:5])) for one in examples]
    assert teams_of(*launched) == [0, 1]


def test_stages_without_launches_are_apart():
    second, third = (example_of(passes(order)) for order in ("FFFBFBFBBB", "FFBFBFBFBB"))
    timed = [one._replace(starts_ns=list(range(len(one.names)))) for one in (second, second, third)]
    assert teams_of(*timed) == [0, 0, 1]
