"""Damaged logs: which lines were damaged, and what must be left of the log.

Run as a program to try many: `python tests/logs/damage.py 10000`; it prints what differs.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator

from log_reading import counted, parsed
from published_logs import CPU_32, SINGLE_NODE, as_printed

from tests.support.real_recordings import EVIDENCE

# one row of these rests on several lines, so that a damaged line may change rows of other lines
MERGED = ("communicators", "bindings", "topology", "mpi_ranks")
NAMES = (
    "nccl_debug/p4d_efa_2.9.9_mpirun.log",
    "nccl_debug/nccl_2.30_log_excerpts.rst",
    "nccl_tests/p4de_16ranks_srun_l.log",
    "nccl_tests/superbench_alltoall_2019layout.log",
    "gpu_health/dmesg-with-xid-119.log",
    "affinity/mi300a_affinity_readme.md",
)
CLOCKS = "index, clocks.sm [MHz], power.draw [W], clocks_event_reasons.active\n" + "".join(
    f"{at % 8}, {1400 + at} MHz, {300 + at}.50 W, 0x{at % 256:016x}\n" for at in range(60)
)
RECORDS = "".join(
    f'{{"header": {{"id": "0xa", "rank": {at % 4}, "n_ranks": 4}}, "coll_perf": {{"coll": "AllReduce", "coll_sn": {at}'
    f', "coll_msg_size_bytes": {8192 * at}, "coll_exec_time_us": {at + 10}}}}}\n'
    for at in range(60)
)
RESULTS = "".join(f"{{'train_runtime': {at}.5, 'train_samples_per_second': {at}.25}}\n" for at in range(1, 40))
RCCL = "".join(
    f"host{at % 3}:12:34 [{at % 8}] NCCL INFO Channel {at % 4:02}/0 : {at}[c1000] -> {at + 1}[c9000] [send] via NET/"
    f"AWS Libfabric/{at % 4}/GDRDMA comm 0x7ffbec000d70 nRanks 80\n"
    for at in range(80)
)


def logs() -> dict[str, list[bytes]]:
    """The lines of the logs that are damaged: made ones, and the real ones where they are at hand."""
    made = {"table": as_printed(SINGLE_NODE), "mpitrace": CPU_32, "clocks": CLOCKS, "records": RECORDS}
    made |= {"results": RESULTS, "rccl": RCCL}
    found = {name: text.encode().splitlines() for name, text in made.items()}
    for name in NAMES:
        path = EVIDENCE / name
        if path.is_file():
            lines = path.read_bytes().splitlines()
            found[name] = lines if len(lines) < 400 else lines[:160] + lines[-60:]
    return found


def damaged(line: bytes, chance: random.Random) -> bytes:
    """The line after one of several accidents."""
    at = chance.randrange(len(line) + 1)
    flipped = bytes([line[at - 1] ^ 1 << chance.randrange(7)]) if line else b""
    junk = bytes(chance.choices(range(256), k=chance.randrange(1, 9))).replace(b"\n", b"?")
    match chance.randrange(6):
        case 0:
            return line[:at]
        case 1:
            return line[at:]
        case 2:
            return line[:at] + junk + line[at:]
        case 3:
            return line[:at] + junk + line[at + len(junk) :]
        case 4:
            return line[:at] + line[at + chance.randrange(1, 20) :]
        case _:
            return line[:at] + flipped.replace(b"\n", b"?") + line[at + 1 :]


def differences(trials: int, seed: int) -> Iterator[str]:
    """Damage logs; yield a text for each case that lost more than the damaged lines."""
    chance = random.Random(seed)
    originals = logs()
    whole = {name: parsed(b"\n".join(lines)) for name, lines in originals.items()}
    for trial in range(trials):
        name = chance.choice(list(originals))
        lines = list(originals[name])
        hit = set(chance.sample(range(len(lines)), chance.randrange(1, 5)))
        rest = parsed(b"\n".join(line for at, line in enumerate(lines) if at not in hit))
        for at in hit:
            lines[at] = damaged(lines[at], chance)
        found = parsed(b"\n".join(lines))
        for relation in whole[name].tables:
            untouched = counted(whole[name], relation) & counted(rest, relation)
            lost: Counter = untouched - counted(found, relation)
            if lost.total() > (len(hit) if relation in MERGED else 0):
                shown = [lines[at] for at in sorted(hit)]
                yield f"seed {seed}, trial {trial}, {name}, {relation}: {dict(lost.most_common(2))} after {shown}"


if __name__ == "__main__":
    bad = 0
    for difference in differences(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        bad += 1
        print(difference, flush=True)
    print(f"{sys.argv[1]} damaged logs, {bad} with a loss beyond the damaged lines")
