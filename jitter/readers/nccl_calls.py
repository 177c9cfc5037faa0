"""Calls of NCCL and RCCL: the operation and the size of the message of the kernels that they launch."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from jitter.core.bandwidth import size_of_message
from jitter.core.names.kernels import parse_operation
from jitter.core.numeric.arrays import Ints
from jitter.readers.columns import LaunchesWithin, columns_of_records, look_up

_GROUP_END: Final = "ncclGroupEnd"


class NcclCall(NamedTuple):
    """A call, or the range of one; what is not recorded is None."""

    start_ns: int
    end_ns: int
    name: str
    communicator: int | None = None
    size: int | None = None
    """Of the message, bytes."""


class Message(NamedTuple):
    """What the call of a launch says of its kernels: columns of ACTIVITIES; None where it does not."""

    collective: str | None
    message_bytes: int | None
    size_bytes: int | None
    group_name: str | None
    group_size: int | None


class NcclCalls:
    """The calls of a recording by thread, and messages of launches by process and correlation.

    Add all calls of a thread, `close`, then note its launches; a launch inside a call sends its message.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.unknown_sizes = 0
        """Number of messages whose size depends on a number of ranks that the recording does not state."""
        self._calls: defaultdict[Hashable, list[NcclCall]] = defaultdict(list)
        self._within = LaunchesWithin()
        self._launches: dict[Hashable, list[Ints]] = {}
        """By process the correlations of launches in calls, and the messages of these calls."""

    @property
    def threads(self) -> Set[Any]:
        """The threads that have calls."""
        return self._within.calls.keys()

    def add(self, thread: Hashable, call: NcclCall) -> None:
        """Add a call of a thread."""
        self._calls[thread].append(call)

    def close(self, ranks: Mapping[int, int] = {}) -> None:
        """Find the messages of the calls since the last time; `ranks` are the sizes of communicators."""
        for thread, calls in self._calls.items():
            calls.sort(key=lambda call: call[:3])
            group: list[NcclCall] = []
            for call in calls:
                is_end = call.name.startswith(_GROUP_END)
                # the operations of a group are launched in the call that ends it
                message = self._message(group if is_end else [call], ranks)
                self._within.add_call(thread, call.start_ns, call.end_ns, message)
                if is_end:
                    group = []
                else:
                    group.append(call)
        self._calls.clear()

    def note_launches(self, process: Hashable, thread: Hashable, start_ns: Ints, correlation: Ints) -> None:
        """Record which launches of a thread with calls, shape (launches,), lie inside one."""
        launches = np.stack([correlation, self._within.around(thread, start_ns)])
        self._launches.setdefault(process, []).append(launches[:, launches[1] >= 0])

    def columns(self, process: Ints, correlations: pa.Array, keys: Sequence[Hashable]) -> dict[str, pa.Array]:
        """Return the columns of `Message` of kernels, by the positions of processes in `keys` and correlations."""
        correlation, message_of_row = correlations.fill_null(-1).to_numpy(), np.full(len(process), -1, np.int32)
        for position in np.unique(process).tolist():
            rows, parts = process == position, self._launches.get(keys[position], [np.empty((2, 0), np.int64)])
            launches = np.concatenate(parts, axis=1)
            launches = launches[:, np.argsort(launches[0], kind="stable")]
            self._launches[keys[position]] = [launches]
            message_of_row[rows] = look_up(launches[0], launches[1], correlation[rows])
        return columns_of_records(self.messages, message_of_row)

    def _message(self, calls: list[NcclCall], ranks: Mapping[int, int]) -> int:
        """Return the index of the message that a launch of these calls' operations sends; -1 if unknown."""
        message = self._combined([call for call in calls if parse_operation(call.name) is not None], ranks)
        if message is None:
            return -1
        self.messages.append(message)
        return len(self.messages) - 1

    def _combined(self, operations: list[NcclCall], ranks_of: Mapping[int, int]) -> Message | None:
        kinds = {(parse_operation(call.name), call.communicator) for call in operations}
        if len(kinds) != 1:
            return None
        ((collective, communicator),) = kinds
        sent = [call.size for call in operations]
        if collective == "send_recv" and len(operations) > 1:
            sends = [call.size for call in operations if "Send" in call.name] or sent
            sent = [None if None in sends else sum(size or 0 for size in sends)]
        sent_bytes = sent[0] if len(set(sent)) == 1 else None
        ranks = None if communicator is None else ranks_of.get(communicator)
        size = None if sent_bytes is None else size_of_message(collective, sent_bytes, ranks)
        self.unknown_sizes += size is None and sent_bytes is not None
        name = None if communicator is None else f"{communicator:#018x}"
        return Message(collective, sent_bytes, size, name, ranks)
