"""Communication of a run, measured step by step: all calls, and each rank's time shares."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from jitter.analysis.metrics.communication.calls import UNKNOWN, Calls, match_calls
from jitter.analysis.metrics.communication.size_histogram import Copies, count_copies
from jitter.analysis.metrics.communication.time_shares import SHARES, StepShares, measure_shares
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns


@dataclass(frozen=True)
class RankStep:
    """One rank's time shares in one step; `shares_ns` is in the order of `SHARES` and adds up to `step_ns`."""

    key: StepKey
    rank: int
    step_ns: int
    shares_ns: tuple[int, ...]


@dataclass
class Communication:
    """All calls of the chosen steps. Lists of arrays, one array a step, shape (calls of the step,)."""

    steps: list[StepKey] = field(default_factory=list)
    rank_steps: list[RankStep] = field(default_factory=list)
    keys: list[Ints] = field(default_factory=list)
    """Position among `kinds`."""
    kinds: dict["CallKind", int] = field(default_factory=dict)
    time_ns: list[Ints] = field(default_factory=list)
    wait_ns: list[Ints] = field(default_factory=list)
    last_rank: list[Ints] = field(default_factory=list)
    size_bytes: list[Ints] = field(default_factory=list)
    imbalance: list[Floats] = field(default_factory=list)
    hidden_ns: list[Ints] = field(default_factory=list)
    exposed_ns: list[Ints] = field(default_factory=list)
    copies: Copies = field(default_factory=Copies)
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class CallKind:
    """Key of one table row, common to its calls. `size_bytes` is None for unequal parts and where unknown."""

    operation: str | None
    size_bytes: int | None
    dtype: str | None
    group_size: int | None
    group: str
    hosts: str | None
    is_unequal: bool

    def of_all_groups(self) -> "CallKind":
        """Return the kind that the calls of all groups share."""
        return replace(self, group="")


def measure_communication(
    steps: Iterable[tuple[StepKey, StepColumns]],
    hosts: Mapping[int, str | None],
    only_group: str | None = None,
    activities: Callable[[StepKey], StepColumns] | None = None,
) -> Communication:
    """Measure steps, given in order with the columns `calls.COLUMNS`; `hosts` are the ranks' hosts.

    If they hold collectives and copies alone, `activities` reads all rows of a step with `calls.COLUMNS_OF_ALL`.
    A rank's step lasts from its first activity to that of the next step, or to its last end if the next step was
    not measured.
    """
    found = Communication()
    previous: tuple[StepKey, StepShares] | None = None
    for key, read in steps:
        calls = match_calls(read, only_group)
        shares = measure_shares(read if activities is None else activities(key), calls)
        if previous is not None:
            _add_shares(found, *previous, shares if _follows(previous[0], key) else None)
        previous = None
        if shares is None:
            continue
        found.steps.append(key)
        _add_calls(found, calls, shares, read.ranks, hosts)
        count_copies(found.copies, read)
        previous = key, shares
        del read, calls  # the next step is read while they would stay
    if previous is not None:
        _add_shares(found, *previous, None)
    return found


def _follows(before: StepKey, key: StepKey) -> bool:
    return before.epoch == key.epoch and before.step + 1 == key.step


def _add_shares(found: Communication, key: StepKey, shares: StepShares, following: StepShares | None) -> None:
    starts = {} if following is None else dict(zip(following.ranks, following.first_ns.tolist(), strict=True))
    busy = shares.busy_ns.sum(axis=0)
    for at, rank in enumerate(shares.ranks):
        first, last = int(shares.first_ns[at]), int(shares.last_ns[at])
        step_ns = max(starts.get(rank, last), last) - first
        own = (*shares.busy_ns[:, at].tolist(), step_ns - int(busy[at]))
        assert len(own) == len(SHARES)
        found.rank_steps.append(RankStep(key, rank, step_ns, own))


def _add_calls(
    found: Communication, calls: Calls, shares: StepShares, ranks: tuple[int, ...], hosts: Mapping[int, str | None]
) -> None:
    found.reasons.update(calls.reasons)
    where = _hosts_of(calls, ranks, hosts)
    kinds = found.kinds
    is_unequal = ~np.isnan(calls.imbalance)
    columns = zip(
        calls.operation,
        calls.size_bytes.tolist(),
        calls.dtype,
        calls.group_size.tolist(),
        calls.group,
        where,
        is_unequal.tolist(),
        strict=True,
    )
    keys = [
        kinds.setdefault(
            CallKind(
                operation,
                None if unequal or size == UNKNOWN else size,
                dtype,
                None if members == UNKNOWN else members,
                group.label,
                host,
                unequal,
            ),
            len(kinds),
        )
        for operation, size, dtype, members, group, host, unequal in columns
    ]
    found.keys.append(np.array(keys, np.int64))
    found.time_ns.append(calls.time_ns)
    found.wait_ns.append(calls.wait_ns)
    found.last_rank.append(calls.last_rank)
    found.size_bytes.append(calls.size_bytes)
    found.imbalance.append(calls.imbalance)
    for total, values in ((found.hidden_ns, shares.hidden_ns), (found.exposed_ns, shares.exposed_ns)):
        summed = np.zeros(len(calls), np.int64)
        np.add.at(summed, calls.kernels.call, values)
        total.append(summed)


def _hosts_of(calls: Calls, ranks: tuple[int, ...], hosts: Mapping[int, str | None]) -> list[str | None]:
    """Return for each call whether its group is on `one` host or `many`; None where a host is unknown."""
    codes: dict[str | None, int] = {None: UNKNOWN}
    of_rank = np.array([codes.setdefault(hosts.get(rank), len(codes)) for rank in ranks], np.int64)
    own = of_rank[calls.kernels.rank]
    lowest, highest = np.full(len(calls), len(codes)), np.full(len(calls), UNKNOWN)
    np.minimum.at(lowest, calls.kernels.call, own)
    np.maximum.at(highest, calls.kernels.call, own)
    complete = np.bincount(calls.kernels.call, minlength=len(calls)) == calls.group_size
    return [
        "many" if low not in (high, UNKNOWN) else "one" if is_complete and low != UNKNOWN else None
        for low, high, is_complete in zip(lowest.tolist(), highest.tolist(), complete.tolist(), strict=True)
    ]
