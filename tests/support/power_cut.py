"""A log of what an action does to a folder, and every folder that a power cut during the action can leave.

The log is made by comparison: before each change that Python announces, and before each sync, the folder is compared
with what it was. So writes of SQLite and Arrow, which Python does not see, are in it too. The model is that of POSIX,
which promises less than any one file system keeps:

- a file's content is safe once the file is synced; until then it may be what was safe before, empty, zeros, or torn;
- an entry of a folder (made, moved, removed) is safe once one of its folders is synced; until then it may be there or
  not, in any combination with others;
- a sync of the whole file system makes everything safe.
"""

import os
import random
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from jitter.core import durability

ROOT = 0
"""The watched folder's node."""
_EVENTS = frozenset({"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"})


class Entry(NamedTuple):
    """A name in a folder."""

    folder: int
    name: str


class Write(NamedTuple):
    """A file's new content."""

    node: int
    content: bytes
    mtime_ns: int


class Link(NamedTuple):
    """Entries that appear for a node, and entries that vanish, in one step: a new file, a move, a removal."""

    node: int
    made: tuple[Entry, ...]
    gone: tuple[Entry, ...]


class Sync(NamedTuple):
    """A file or folder made safe; None: all of them."""

    node: int | None


Change = Write | Link | Sync
Tree = dict[Path, bytes | None]
"""Content of each file by path; None for a folder."""


@dataclass
class WriteLog:
    """What an action did to a folder: the folder before, and the changes in order."""

    folders: set[int] = field(default_factory=lambda: {ROOT})
    before: list[Change] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.changes)

    def count(self, kind: type) -> int:
        """Return the number of changes of one kind."""
        return sum(isinstance(change, kind) for change in self.changes)


@contextmanager
def write_log(folder: Path) -> Iterator[WriteLog]:
    """Log what happens to a folder, which exists, while the block lasts."""
    watch = _Watch(folder)
    watch.look(watch.log.before)
    really = os.fsync, os.fdatasync, os.sync, durability.sync_file_system

    def sync(descriptor: int) -> None:
        watch.look()
        really[0](descriptor)
        watch.note_sync(os.fstat(descriptor).st_ino)

    def sync_all(*arguments: Any) -> bool:
        watch.look()
        watch.log.changes.append(Sync(None))
        return True

    _watches.append(watch)
    try:
        with (
            patch.object(os, "fsync", sync),
            patch.object(os, "fdatasync", sync),
            patch.object(os, "sync", sync_all),
            patch.object(durability, "sync_file_system", sync_all),
        ):
            yield watch.log
            watch.look()
    finally:
        _watches.remove(watch)
        watch.close()


_watches: list["_Watch"] = []


def _announced(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watches or event not in _EVENTS or (event == "open" and not _is_written(arguments)):
        return
    for watch in _watches:
        watch.look()


def _is_written(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


sys.addaudithook(_announced)


class _Watch:
    """Compares a folder with what it was. Holds every node open, so that no number of a node is used twice."""

    def __init__(self, folder: Path) -> None:
        self.log = WriteLog()
        self._folder = folder
        self._held: dict[int, int] = {folder.stat().st_ino: ROOT}
        self._open = [os.open(folder, os.O_RDONLY)]
        self._contents: dict[int, bytes] = {}
        self._entries: dict[Entry, int] = {}
        self._lock = threading.RLock()
        self._is_looking = False

    def look(self, into: list[Change] | None = None) -> None:
        """Add to the log what has changed since the last look."""
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
            try:
                self._compare(self.log.changes if into is None else into)
            finally:
                self._is_looking = False

    def note_sync(self, inode: int) -> None:
        """Add a sync to the log, if it is of a node of the folder."""
        if inode in self._held:
            self.log.changes.append(Sync(self._held[inode]))

    def close(self) -> None:
        """Release all nodes."""
        for descriptor in self._open:
            os.close(descriptor)

    def _compare(self, into: list[Change]) -> None:
        found: dict[Entry, int] = {}
        writes: list[Write] = []
        self._scan(str(self._folder), ROOT, found, writes)
        nodes: dict[int, tuple[list[Entry], list[Entry]]] = {}
        for entry in found.keys() | self._entries.keys():
            old, new = self._entries.get(entry), found.get(entry)
            if old != new and new is not None:
                nodes.setdefault(new, ([], []))[0].append(entry)
            if old != new and old is not None and new is None:
                nodes.setdefault(old, ([], []))[1].append(entry)
        into += [Link(node, tuple(made), tuple(gone)) for node, (made, gone) in sorted(nodes.items())]
        into += writes
        self._entries = found

    def _scan(self, path: str, folder: int, found: dict[Entry, int], writes: list[Write]) -> None:
        for item in os.scandir(path):
            try:
                state = item.stat(follow_symlinks=False)
                node = self._held.get(state.st_ino)
                if node is None:
                    self._open.append(os.open(item.path, os.O_RDONLY))
                    node = self._held[state.st_ino] = len(self._held)
                found[Entry(folder, item.name)] = node
                if stat.S_ISDIR(state.st_mode):
                    self.log.folders.add(node)
                    self._scan(item.path, node, found, writes)
                    continue
                content = Path(item.path).read_bytes()
            except FileNotFoundError:  # SQLite's own files come and go unannounced
                continue
            if content != self._contents.get(node, b""):
                self._contents[node] = content
                writes.append(Write(node, content, state.st_mtime_ns))


@dataclass(frozen=True)
class PowerCut:
    """What a power cut does to what is not safe: `keeps_entry` and `leaves` decide for each entry and each file."""

    name: str
    keeps_entry: Callable[[Link], bool]
    leaves: Callable[[bytes, bytes], bytes]
    """What is left of a file, from its safe and its last content."""


def _safe(safe: bytes, last: bytes) -> bytes:
    return safe


def _empty(safe: bytes, last: bytes) -> bytes:
    return b""


def _zeroed(safe: bytes, last: bytes) -> bytes:
    return bytes(len(last))


def _torn(safe: bytes, last: bytes) -> bytes:
    half = len(last) // 2
    return last[:half] + bytes(len(last) - half)


def _short(safe: bytes, last: bytes) -> bytes:
    return last[: len(last) // 2]


def _whole(safe: bytes, last: bytes) -> bytes:
    return last


REMAINS = (_safe, _empty, _zeroed, _torn, _short, _whole)
POWER_CUTS = (
    PowerCut("all lost", lambda link: False, _safe),
    PowerCut("entries lost", lambda link: False, _whole),
    PowerCut("files as before", lambda link: True, _safe),
    PowerCut("files empty", lambda link: True, _empty),
    PowerCut("files zeroed", lambda link: True, _zeroed),
    PowerCut("files torn", lambda link: True, _torn),
    PowerCut("files short", lambda link: True, _short),
)


def mixed_cut(seed: int) -> PowerCut:
    """Return a power cut that decides by chance, for each entry and each file."""
    chance = random.Random(seed)
    return PowerCut(
        f"mixed {seed}",
        lambda link: chance.random() < 0.5,
        lambda safe, last: chance.choice([remains(safe, last) for remains in REMAINS]),
    )


def after_power_cut(log: WriteLog, length: int, cut: PowerCut) -> Tree:
    """Return the folder's tree after a power cut behind the first `length` changes."""
    entries: dict[Entry, int] = {}
    safe: dict[int, bytes] = {}
    last: dict[int, bytes] = {}
    for change in log.before:
        if isinstance(change, Link):
            _apply(entries, change)
        elif isinstance(change, Write):
            safe[change.node] = last[change.node] = change.content
    pending: list[Link] = []
    for change in log.changes[:length]:
        if isinstance(change, Write):
            last[change.node] = change.content
        elif isinstance(change, Link):
            pending.append(change)
        elif change.node is None or change.node in log.folders:
            is_safe = [change.node is None or change.node in _folders_of(link) for link in pending]
            for link, done in zip(pending, is_safe, strict=True):
                if done:
                    _apply(entries, link)
            pending = [link for link, done in zip(pending, is_safe, strict=True) if not done]
            if change.node is None:
                safe = dict(last)
        elif change.node in last:
            safe[change.node] = last[change.node]
    for link in pending:
        if cut.keeps_entry(link):
            _apply(entries, link)
    left = {
        node: content if safe.get(node) == content else cut.leaves(safe.get(node, b""), content)
        for node, content in last.items()
    }
    return dict(_walk(log, entries, left, ROOT, Path()))


def _folders_of(link: Link) -> set[int]:
    return {entry.folder for entry in (*link.made, *link.gone)}


def _apply(entries: dict[Entry, int], link: Link) -> None:
    for entry in link.gone:
        if entries.get(entry) == link.node:
            del entries[entry]
    for entry in link.made:
        entries[entry] = link.node


def _walk(
    log: WriteLog, entries: dict[Entry, int], left: dict[int, bytes], folder: int, path: Path
) -> Iterator[tuple[Path, bytes | None]]:
    for entry, node in sorted(entries.items()):
        if entry.folder != folder:
            continue
        if node in log.folders:
            yield path / entry.name, None
            yield from _walk(log, entries, left, node, path / entry.name)
        else:
            yield path / entry.name, left.get(node, b"")


def write_tree(tree: Tree, folder: Path) -> None:
    """Write a tree into an empty folder."""
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
