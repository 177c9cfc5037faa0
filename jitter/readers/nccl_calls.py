"""Calls of NCCL and RCCL: the operation and the size of the message of the kernels that they launch."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        self._calls: defaultdict[tuple[int, int | None], list[NcclCall]] = defaultdict(list)
        self._within = LaunchesWithin()
        self._launches: list[Ints] = [np.empty((3, 0), np.int64)]
        """Parts (3, launches): process, correlation and message of the launches in calls."""

    def add(self, thread: tuple[int, int | None], call: NcclCall) -> None:
        """Add a call of a thread: its process and its number there, None where that is unknown."""
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

    def note_launches(self, launches: pa.Table) -> None:
        """Record which launches, with the columns `process`, `thread`, `start_ns`, `correlation`, lie inside a call."""
        is_known = pc.and_(launches["start_ns"].is_valid(), pc.greater_equal(launches["correlation"], 0))
        known = launches.filter(is_known)
        message = self._within.around(known)
        columns = [known["process"].to_numpy(), known["correlation"].to_numpy(), message]
        self._launches.append(np.stack(columns)[:, message >= 0])

    def columns(self, process: Ints, correlations: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of `Message` of kernels, by the process of their launch and its correlation."""
        if len(self._launches) > 1:
            launches = np.concatenate(self._launches, axis=1)
            self._launches = [launches[:, np.lexsort(launches[1::-1])]]
        (launches,) = self._launches
        correlation, message_of_row = correlations.fill_null(-1).to_numpy(), np.full(len(process), -1, np.int32)
        for number in np.unique(process).tolist():
            rows, (known, message) = process == number, launches[1:, launches[0] == number]
            message_of_row[rows] = look_up(known, message, correlation[rows])
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
