"""A tape of a run's times in two settings, and the shares of a loss, backwards through it.

Slow and obvious: one Python object a node, and Shapley values by their definition. `r` is a node's value in the upper
setting (recorded), `b` in the lower one (baseline), and its change is `r - b`. A time moves with the times that it is
computed from, so a multiplier on it is passed on to these. A step's loss is the change of its end, multiplier 1, less
that of the end of the step before, multiplier -1.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import factorial
from typing import NamedTuple

TINY_NS = 1e-3
"""A change of a time beside collectives below which no multiplier is computed from it."""
MOST_BESIDE = 3
"""Collectives that are players of a kernel beside them; what further ones change is `overlap`."""


class Charge(NamedTuple):
    """To what a share is charged."""

    step: int
    """Of the self time."""
    rank: int | None
    """The rank's number in the run; None for a transfer."""
    kind: str
    """A class of the account."""
    place: int | None = None
    """Operation in the team's program; of a transfer the group, of all groups; None where there is none."""


Shares = dict[Charge, float]
"""ns."""


@dataclass(eq=False, kw_only=True, repr=False)
class Node:
    r: float
    b: float
    step: int
    rank: int | None = None
    """None for what is of no single rank."""
    place: int | None = None
    border: "Node | None" = None
    """Its rank's end of the step, if it follows that: from where it is measured, if from no collective."""
    head: int = -1
    """The latest collective of its step through which it goes in both settings; -1 for none. See `anchors`."""
    number: int = -1
    """Position on the tape."""

    @property
    def change(self) -> float:
        return self.r - self.b

    @property
    def is_known(self) -> bool:
        """Whether it has a value in both settings."""
        return math.isfinite(self.change)


@dataclass(eq=False, kw_only=True, repr=False)
class Leaf(Node):
    """A self time or a transfer, of a class."""

    kind: str


@dataclass(eq=False, kw_only=True, repr=False)
class Given(Node):
    """A time that is as recorded, but for what was saved before: what it waited for is unknown."""


@dataclass(eq=False, kw_only=True, repr=False)
class Sum(Node):
    """A time, the first input, plus self times, plus a constant."""

    inputs: tuple[Node, ...]


@dataclass(eq=False, kw_only=True, repr=False)
class Mean(Node):
    """The mean of some times."""

    inputs: tuple[Node, ...]


@dataclass(eq=False, kw_only=True, repr=False)
class Anchored(Node):
    """A time that is measured from an earlier one: the anchor, or the end of the step before if it is None."""

    anchor: Node | None


@dataclass(eq=False, kw_only=True, repr=False)
class Latest(Anchored):
    """The latest of some times."""

    inputs: tuple[Node, ...]


@dataclass(eq=False, kw_only=True, repr=False)
class Beside(Anchored):
    """The end of a kernel that takes `factor` times as long beside collectives, in whole ns after its start."""

    start: Node
    work: Leaf
    beside: tuple[tuple[Node, Node], ...]
    """Start and end of each collective that overlaps it in either setting, the latest first."""
    players: tuple[tuple[Node, Node], ...]
    """The first of them, up to `MOST_BESIDE`."""
    factor: float


@dataclass(eq=False, kw_only=True, repr=False)
class Slot(Node):
    """The start that frees a place of the launch queue: of a launch in r, maybe of another one in b."""

    inputs: tuple[Node, Node]


@dataclass
class Tape:
    """The nodes in the order in which they were computed."""

    nodes: list[Node] = field(default_factory=list)
    ends: list[Node] = field(default_factory=list)
    """Of the steps, as far as they are known."""

    def put(self, node: Node) -> None:
        node.number = len(self.nodes)
        self.nodes.append(node)

    def end_before(self, step: int) -> Node | None:
        """Return the last known end of the steps before one; None if there is none."""
        return max((end for end in self.ends if end.step < step), key=lambda end: end.step, default=None)

    def shares(self, end: Node, steps_back: int) -> Shares:
        """Return the shares of how much more a step's end changes than that of the step before.

        What lies more than `steps_back` steps before it is carried.
        """
        return _Pass(self, end, steps_back).shares()


class _Pass:
    """One pass backwards, from a step's end."""

    def __init__(self, tape: Tape, end: Node, steps_back: int) -> None:
        self.tape, self.step, self.first = tape, end.step, end.step - steps_back
        self.multiplier: dict[int, float] = {}
        self.waiting: list[int] = []
        """Numbers below 0 of the nodes that have a multiplier: a heap, the last on the tape first."""
        self.found: Shares = defaultdict(float)
        self.give(end, 1.0)
        self.give_end_before(end, -1.0)

    def shares(self) -> Shares:
        while self.waiting:
            node = self.tape.nodes[-heapq.heappop(self.waiting)]
            self.pass_on(node, self.multiplier.pop(node.number))
        return {charge: share for charge, share in self.found.items() if share != 0.0}

    def pass_on(self, node: Node, weight: float) -> None:
        """Pass a node's multiplier on to what it is computed from; charge what that leaves."""
        if isinstance(node, Leaf):
            self.charge(node, node.kind, weight * node.change)
            return
        is_left = isinstance(node, Slot) and any(one.step != node.step for one in node.inputs)
        if node.step < self.first or is_left or isinstance(node, Given):
            before = self.end_before(node)
            self.charge(node, "carried", weight * (node.change - (0.0 if before is None else before.change)))
            self.give_end_before(node, weight)
            return
        if isinstance(node, Beside):
            self.charge(node, "overlap", weight * self.pass_on_beside(node, weight))
            return
        if isinstance(node, Latest):
            self.pass_on_latest(node, weight)
            changed = max(one.r for one in node.inputs) - max(one.b for one in node.inputs)
        else:
            assert isinstance(node, Sum | Mean | Slot)
            part = 1.0 if isinstance(node, Sum) else 1 / len(node.inputs)
            for one in node.inputs:
                self.give(one, weight * part)
            changed = sum(one.change * part for one in node.inputs)
        self.charge(node, "unexplained", weight * (node.change - changed))

    def end_before(self, node: Node) -> Node | None:
        """Return the end of the step before a node's; before the steps that are charged, the last of these."""
        return self.tape.end_before(max(node.step, self.first))

    def give_end_before(self, node: Node, weight: float) -> None:
        """Give the end of the step before a node's its multiplier, unless that step is charged no more."""
        before = self.end_before(node)
        if before is not None and before.step >= self.first:
            self.give(before, weight)

    def since(self, node: Anchored) -> float:
        """Return how much that changed from which a node is measured."""
        anchor = node.anchor or node.border or self.end_before(node)
        return 0.0 if anchor is None else anchor.change

    def give_anchor(self, node: Anchored, weight: float) -> None:
        if (anchor := node.anchor or node.border) is not None:
            self.give(anchor, weight)
        else:
            self.give_end_before(node, weight)

    def pass_on_latest(self, node: Latest, weight: float) -> None:
        """Give each input the part of its change that is one of the latest, and the anchor the rest."""
        since = self.since(node)
        if (one := dominating(node.inputs, since)) is not None:
            self.give(one, weight)
            return
        rest = 1.0
        for one, part in zip(node.inputs, shapley_of_latest(node.inputs, since), strict=True):
            if part != 0.0:
                self.give(one, weight * part / (one.change - since))
                rest -= part / (one.change - since)
        self.give_anchor(node, weight * rest)

    def pass_on_beside(self, node: Beside, weight: float) -> float:
        """Give the times, and charge the work, of a kernel beside collectives their parts; return what is left, ns."""
        since = self.since(node)
        left, rest = node.change - since, 1.0
        for one, part in parts_beside(node, since):
            left -= part
            if isinstance(one, Leaf):
                self.charge(one, one.kind, weight * part)
                continue
            change = one.change - since
            share = part / change if abs(change) > TINY_NS else float(one is node.start)
            self.give(one, weight * share)
            rest -= share
        self.give_anchor(node, weight * rest)
        return left

    def give(self, node: Node, multiplier: float) -> None:
        if multiplier == 0.0:
            return
        if node.number not in self.multiplier:
            heapq.heappush(self.waiting, -node.number)
        self.multiplier[node.number] = self.multiplier.get(node.number, 0.0) + multiplier

    def charge(self, node: Node, kind: str, share: float) -> None:
        place = None if kind == "carried" else node.place
        self.found[Charge(node.step, node.rank, kind, place)] += share


def dominating(inputs: Sequence[Node], since: float) -> Node | None:
    """Return the input that is the latest whatever the settings of all inputs are; None if there is none."""
    for one in inputs:
        if all(min(one.r, one.b + since) >= max(other.r, other.b + since) for other in inputs if other is not one):
            return one
    return None


def parts_beside(node: Beside, since: float) -> list[tuple[Node, float]]:
    """Return how much of a kernel's later end, measured from `since`, is owed to its start, its work, collectives."""
    players = [node.start, node.work, *(one for pair in node.players for one in pair)]

    def end(chosen: frozenset[int]) -> float:
        def at(one: Node) -> float:
            if one.number in chosen:
                return one.r
            return one.b if isinstance(one, Leaf) else one.b + since

        return end_of_work(at(node.start), at(node.work), [(at(one), at(to)) for one, to in node.beside], node.factor)

    return list(zip(players, shapley([one.number for one in players], end), strict=True))


def shapley(players: Sequence[int], value: Callable[[frozenset[int]], float]) -> list[float]:
    """Return the Shapley value of each player by its definition, over all subsets."""
    count = len(players)
    subsets = [frozenset(some) for n in range(count + 1) for some in itertools.combinations(players, n)]
    values = {some: value(some) for some in subsets}
    weight = [factorial(n) * factorial(count - n - 1) / factorial(count) for n in range(count)]
    return [
        sum(weight[len(some)] * (values[some | {one}] - values[some]) for some in subsets if one not in some)
        for one in players
    ]


def shapley_of_latest(inputs: Sequence[Node], since: float) -> list[float]:
    """Return the Shapley values of: the latest of `r` of the inputs chosen and `b + since` of the others.

    At a level between two neighbouring values an input is above it in both settings, and nothing changes; or some are
    in r only (p of them) and some in b only (q). In a random order one of the p decides if it comes before the others
    of them and after all q, one of the q if it comes last of the q and before all p.
    """
    r, b = [one.r for one in inputs], [one.b + since for one in inputs]
    found = [0.0] * len(inputs)
    for low, high in itertools.pairwise(sorted({*r, *b})):
        above_r, above_b = [one >= high for one in r], [one >= high for one in b]
        if any(one and other for one, other in zip(above_r, above_b, strict=True)):
            continue
        p, q = sum(above_r), sum(above_b)
        for at in range(len(inputs)):
            if above_r[at]:
                found[at] += factorial(q) * factorial(p - 1) / factorial(p + q) * (high - low)
            if above_b[at]:
                found[at] -= factorial(q - 1) * factorial(p) / factorial(p + q) * (high - low)
    return found


def end_of_work(start: float, work: float, beside: Sequence[tuple[float, float]], factor: float) -> float:
    """Return when work ends that takes `factor` times as long while any of some collectives runs."""
    now, left = start, work
    for border in sorted({time for pair in beside for time in pair if time > start}):
        pace = factor if any(begin <= now < end for begin, end in beside) else 1.0
        if now + left * pace <= border:
            return now + left * pace
        left -= (border - now) / pace
        now = border
    return now + left
