"""Anchors: from where each maximum of a step is measured.

The collectives of a step, one group each, are numbered as they end. `Node.head` is the latest of them through which a
time goes in both settings: what changes it changes the time as much. The head of a collective is its parent, so heads
form a tree whose root, -1, is the end of the step before.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.account.tape import Node


class Collective(NamedTuple):
    moved: Node
    """How much later than recorded it ends."""
    parent: int
    ranks: frozenset[int]


@dataclass
class Anchors:
    """The collectives of one step that have ended."""

    step: int
    change_before: float
    """How much the end of the step before changed."""
    collectives: list[Collective]

    def end(self, moved: Node, ranks: Collection[int]) -> int:
        """Number a collective of these ranks; return its number, the head of its ends."""
        number = len(self.collectives)
        self.collectives.append(Collective(moved, moved.head, frozenset(ranks)))
        moved.head = number
        return number

    def head(self, node: Node) -> int:
        return node.head if node.step == self.step else -1

    def common(self, nodes: Sequence[Node]) -> int:
        """Return the latest collective through which all of these go; -1 for none."""
        heads = {self.head(one) for one in nodes}
        while len(heads) > 1:
            latest = max(heads)
            heads = heads - {latest} | {self.collectives[latest].parent}
        return heads.pop()

    def head_of_latest(self, inputs: Sequence[Node]) -> int:
        """Return the head of the latest of some times: what they share that are the latest in either setting."""
        return self.common(binding(inputs))

    def anchor(self, inputs: Sequence[Node], ranks: Collection[int], border: Node | None) -> Node | None:
        """Return from where the latest of some times is measured; None: from the border, or the end of the step before.

        That is the latest collective, with all these ranks, through which all inputs go that can matter.
        """
        chosen = binding(inputs)
        while True:
            number = self.attended(self.common(chosen), ranks)
            root = self.change_before if border is None else border.change
            since = root if number < 0 else self.collectives[number].moved.change
            least = max(min(one.r, one.b + since) for one in inputs)
            more = [one for one in inputs if one not in chosen and max(one.r, one.b + since) > least]
            if not more:
                return None if number < 0 else self.collectives[number].moved
            chosen = [*chosen, *more]

    def anchor_of_all(self, inputs: Sequence[Node], ranks: Collection[int]) -> Node | None:
        """Return from where a time is measured for which all inputs matter."""
        number = self.attended(self.common(inputs), ranks)
        return None if number < 0 else self.collectives[number].moved

    def attended(self, number: int, ranks: Collection[int]) -> int:
        """Return the collective, or the latest on its way to the root, that has all these ranks and is known."""
        while number >= 0:
            one = self.collectives[number]
            if one.moved.is_known and one.ranks.issuperset(ranks):
                break
            number = one.parent
        return number


def binding(inputs: Sequence[Node]) -> list[Node]:
    """Return the inputs that are the latest in either setting."""
    in_r, in_b = max(one.r for one in inputs), max(one.b for one in inputs)
    return [one for one in inputs if one.r == in_r or one.b == in_b]
