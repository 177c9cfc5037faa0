"""Damaged logs: no traceback, and what undamaged lines state stays."""

import random
import re
import time

import pytest
from damage import differences, logs
from log_reading import parsed
from test_declared import CASES

from jitter.logs import sniff
from tests.support.fuzz_depth import fuzz, of_all, some_of
from tests.support.real_recordings import EVIDENCE, needs_evidence

WATCHDOG = """\
(Worker[rank=9] pid=309) [rank9]:[E129 16:38:47.569 P.cpp:683] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=522, OpType=ALLTOALL_BASE, NumelIn=5872, NumelOut=5872, Timeout(ms)=600000) ran for 600010 milliseconds
[rank9]:[E1 P.cpp:2] [PG ID 15 PG GUID 123(EXPERT) Rank 1]  failure detected by watchdog at work sequence id: 52229 PG \
status: last enqueued work: 52258, last completed work: 52228
[rank8]:[E1 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 8] Received a dump signal due to a collective timeout from \
this local rank and dump the debug info. Last enqueued NCCL work: 62, last completed NCCL work: 62.
[rank7]:[E1 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 7] ProcessGroupNCCL's watchdog got stuck for 480 seconds
[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms
Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0.
"""


@fuzz
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_damaged_lines_lose_themselves_alone(seed: int):
    assert list(differences(of_all(100, 30), seed)) == []


@fuzz
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_long_line_takes_linear_time(seed: int):
    """A pattern that tries every place of a run of blanks or letters takes a second for 20,000 of them, and more."""
    chance = random.Random(seed)
    declared = [text.encode().splitlines() for _, text, *_ in CASES] + [WATCHDOG.encode().splitlines()]
    every = [lines for lines in (*logs().values(), *declared) if lines]
    for lines in every:
        parsed(b"\n".join(lines))  # loads what reading needs
    for _ in range(of_all(150, 50)):
        lines = chance.choice(every)
        at = chance.randrange(len(lines))
        words = list(re.finditer(rb"[A-Za-z_]+|\d+|\s+|[^\sA-Za-z0-9_]", lines[at]))
        if not words:
            continue
        word = chance.choice(words)
        piece = chance.choice((word[0], word[0][:1], b" ", b" " + word[0]))
        line = lines[at][: word.start()] + piece * (20_000 // len(piece)) + lines[at][word.end() :]
        start = time.thread_time()
        parsed(b"\n".join((*lines[max(at - 20, 0) : at], line, *lines[at + 1 : at + 3])) + b"\n")
        assert time.thread_time() - start < 0.5, line[:80]


@fuzz
@needs_evidence
@pytest.mark.parametrize("seed", some_of(range(20), 5))
def test_no_damage_to_a_file_makes_a_traceback(seed: int):
    chance = random.Random(seed)
    for path in sorted(EVIDENCE.rglob("*")):
        if not path.is_file() or path.suffix == ".sqlite":
            continue
        content = bytearray(path.read_bytes()[:20_000])
        for _ in range(chance.randrange(1, 40)):
            if content:
                content[chance.randrange(len(content))] = chance.randrange(256)
        parsed(bytes(content[: chance.randrange(len(content) + 1)]), path.name)
        sniff(bytes(content))
