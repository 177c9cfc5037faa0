"""The same lines in other encodings and wrappings give the same rows."""

import json
from pathlib import PurePath

import pytest

from jitter.logs import parse_blocks, sniff

LINES = (
    "node7:12:34 [0] NCCL INFO NET/IB : No device found.\n"
    "node7:12:34 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
    "node7:12:34 [0] NCCL INFO comm 0x1 rank 3 nranks 8 cudaDev 3 busId 9b000 - Init COMPLETE\n"
)


def rows(content: bytes, relation: str) -> list[dict[str, object]]:
    blocks = (content[at : at + 61] for at in range(0, len(content), 61))  # an odd size: characters are cut
    table = parse_blocks(blocks, PurePath("/logs/job.log")).tables[relation]
    return table.drop_columns(["source"]).to_pylist()


@pytest.mark.parametrize(
    "content",
    [
        LINES.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + LINES.encode(),
        LINES.encode("utf-16"),
        b"\xff\xfe" + LINES.replace("\n", "\r\n").encode("utf-16-le"),
        b"\xfe\xff" + LINES.encode("utf-16-be"),
        LINES.replace("node7", "\x1b[32mnode7").replace("\n", "\x1b[0m\n").encode(),
        "".join(json.dumps({"log": line, "stream": "stdout"}) + "\n" for line in LINES.splitlines(True)).encode(),
    ],
)
def test_encodings_and_wrappings(content):
    assert sniff(content) == "nccl-debug"
    assert rows(content, "communicators") == rows(LINES.encode(), "communicators")


def test_journal_in_json_states_host_and_time():
    entry = {"__REALTIME_TIMESTAMP": "1724779239123456", "_HOSTNAME": "node7", "_TRANSPORT": "kernel"}
    line = json.dumps(entry | {"MESSAGE": "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."})
    (row,) = rows(line.encode(), "gpu_errors")
    assert (row["host"], row["time_ns"], row["code"]) == ("node7", 1_724_779_239_123_456_000, 79)
    fields = "".join(f"{name}={value}\n" for name, value in entry.items())
    exported = f"__CURSOR=s=1\n{fields}MESSAGE={json.loads(line)['MESSAGE']}\nPRIORITY=3\n\n"
    assert rows(exported.encode() * 2, "gpu_errors") == [row, row]
    assert sniff(json.dumps({"MESSAGE": [1, 2], "x": "Xid ("}).encode()) is None
    as_bytes = json.dumps(entry | {"MESSAGE": list(json.loads(line)["MESSAGE"].encode())})
    for form in (as_bytes, f"\x1e{line}", f"data: {line}"):  # `-o json`, `-o json-seq`, `-o json-sse`
        assert rows(form.encode(), "gpu_errors") == [row]


@pytest.mark.parametrize("stamp", ["2024-08-27T17:20:39Z", "2024-08-27T19:20:39+02:00", "2024-08-27 13:20:39 -0400"])
def test_zones_of_times(stamp):
    line = f"{stamp} node3 kernel: NVRM: Xid (PCI:0000:9b:00): 79, x\n"
    assert rows(line.encode(), "gpu_errors")[0]["time_ns"] == 1_724_779_239_000_000_000
