"""NCCL_DEBUG logs of every generation: communicators, networks, edges; nothing private."""

from collections import Counter

import pytest
from log_reading import parsed, rows

from jitter.logs import parse, sniff
from tests.support.real_recordings import EVIDENCE, needs_evidence

EDGE = ("channel", "from_rank", "to_rank", "transport", "nic", "gdr", "lines")
HEAD = "node-1:12:34 [0] NCCL INFO "


@needs_evidence
def test_log_of_16_ranks_over_efa():
    path = EVIDENCE / "nccl_debug/p4d_efa_2.9.9_mpirun.log"
    log = parse(path)
    assert sniff(path) == "nccl-debug"
    assert log.problems == []
    assert log.records == {"nccl-tests": 60, "nccl-debug": 529}

    assert sorted(rows(log, "communicators", "rank")) == list(range(16))
    assert set(rows(log, "communicators", "ranks", "version", "network", "plugin")) == {
        (16, "2.9.9+cuda11.2", "AWS Libfabric", "OFI (efa)")
    }
    assert all(interfaces == ["eth0"] for interfaces in rows(log, "communicators", "interfaces"))
    addresses = Counter(host for host, _ in set(rows(log, "communicators", "host", "bus_id")))
    assert addresses == {"nccl-tests-efa-16-worker-0": 8, "nccl-tests-efa-16-worker-1": 8}
    assert ("nccl-tests-efa-16-worker-1", 6, 14, "0000:a0:1c") in rows(
        log, "communicators", "host", "device", "rank", "bus_id"
    )

    lines = Counter()
    for transport, gdr, count in rows(log, "edges", "transport", "gdr", "lines"):
        lines[transport, gdr] += count
    assert lines == {("P2P/IPC/read", None): 256, ("NET/AWS Libfabric", True): 64}
    assert len(set(rows(log, "edges", "channel", "from_rank", "to_rank"))) == 288

    assert len(rows(log, "bandwidth", "size_bytes")) == 60
    assert set(rows(log, "bandwidth", "collective", "ranks")) == {("all_reduce", 16)}
    assert rows(log, "bandwidth", "busbw")[-2:] == [43.81, 43.72]
    assert sum(rows(log, "bandwidth", "busbw")) / 60 == pytest.approx(11.2432, abs=0.005)


@needs_evidence
def test_documented_lines_of_2_30_between_prose():
    log = parse(EVIDENCE / "nccl_debug/nccl_2.30_log_excerpts.rst")
    assert log.problems == []
    assert log.records == {"nccl-debug": 74}
    assert rows(log, "edges", *EDGE) == [
        (channel, 0, 1, transport, nic, gdr, 1)
        for channel in (0, 1)
        for transport, nic, gdr in (
            ("NET/Socket", 0, False),
            ("P2P/CUMEM", None, None),
            ("SHM/direct/direct", None, None),
        )
    ]
    assert set(rows(log, "communicators", "version")) == {"2.30.3+cuda13.0"}
    assert ("IB", 0, 2) in rows(log, "communicators", "network", "rank", "ranks")
    assert sorted(rows(log, "communicators", "rank")[-4:]) == [0, 1, 2, 3]
    assert rows(log, "communicators", "plugin").count("failed") == 1


def test_the_three_published_lines():
    tail = " comm 0x7ffbec000d70 nRanks 80\n"
    log = parsed(
        f"host1:86382:86734 [0] NCCL INFO Channel 02/0 : 36[d9000] -> 45[de000] [send] via NET/Socket/4{tail}"
        f"host2:21778:21989 [0] NCCL INFO Channel 01/0 : 70[c1000] -> 74[c9000] [send] via NET/AWS Libfabric/0{tail}"
        "host3:43731:43989 [0] NCCL INFO Channel 01/0 : 14[c1000] -> 18[c9000] [send] via NET/AWS Libfabric/0/GDRDMA"
        + tail
    )
    assert rows(log, "edges", *EDGE) == [
        (1, 14, 18, "NET/AWS Libfabric", 0, True, 1),
        (1, 70, 74, "NET/AWS Libfabric", 0, False, 1),
        (2, 36, 45, "NET/Socket", 4, False, 1),
    ]


@pytest.mark.parametrize(
    ("message", "edge"),
    [
        ("Ring 00 : 3 -> 4 [receive] via NET/IB/0", (0, 3, 4, "NET/IB", 0, False, 1)),
        ("Ring 01 : 0[0] -> 1[1] via P2P/IPC", (1, 0, 1, "P2P/IPC", None, None, 1)),
        ("Channel 02 : 0[1000] -> 1[2000] via direct shared memory", (2, 0, 1, "direct shared memory", None, None, 1)),
        ("Channel 00 : 1[1000] -> 0[2000] via SHM/direct/direct", (0, 1, 0, "SHM/direct/direct", None, None, 1)),
        ("Channel 00/0 : 7[7] -> 0[0] [send] via NET/IB/3(4)/GDRDMA(PCI)", (0, 7, 0, "NET/IB", 3, True, 1)),
        (
            "Channel 00/0 : 7[7] -> 0[0] [send] via NET/Libfabric/3/GDRDMA/Shared",
            (0, 7, 0, "NET/Libfabric", 3, True, 1),
        ),
        ("Channel 11/1 : 0[0] -> 1[1] via P2P/CUMEM/read", (11, 0, 1, "P2P/CUMEM/read", None, None, 1)),
        ("Channel 11/1 : 0[0] -> 1[1] via P2P/direct pointer", (11, 0, 1, "P2P/direct pointer", None, None, 1)),
        ("Channel 11/1 : 0[0] -> 1[1] via P2P/indirect/5[5]", (11, 0, 1, "P2P/indirect/5[5]", None, None, 1)),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via COLLNET/SHARP/1/GDRDMA", (0, 0, 8, "COLLNET/SHARP", 1, True, 1)),
        ("Channel 00/08 :    0   7   6   5   4   3   2   1", None),
        ("Ring 00 : 1 -> 0 -> 1", None),
        ("Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->7", None),
    ],
)
def test_edges_of_every_version(message: str, edge: tuple | None):
    log = parsed(f"[1,3]<stdout>:{HEAD}{message}\n")
    assert rows(log, "edges", *EDGE) == ([] if edge is None else [edge])
    assert log.problems == []
    assert log.records == {"nccl-debug": 1}


@pytest.mark.parametrize(
    ("message", "row"),
    [
        ("comm 0x7f10 rank 3 nranks 4 cudaDev 1 nvmlDev 1 - Init COMPLETE", ("0x7f10", 3, 4, 1, None)),
        ("comm 0x7f10 rank 3 nranks 4 cudaDev 1 busId c1000 localSize 0 used 56 bytes - Init COMPLETE",
         ("0x7f10", 3, 4, 1, "0000:c1:00")),
        ("ncclCommInitRank comm 0x7f10 rank 3 nranks 4 cudaDev 1 nvmlDev 5 busId 901c0 commId 0xbeef - Init START",
         ("0xbeef", 3, 4, 1, "0000:90:1c")),
        ("[Rank 3] ncclCommSplit comm 0x7f10 rank 3 nranks 4 cudaDev 1 nvmlDev 5 busId 9010000901c0 commId 0xbeef"
         " parent 0x1 splitCount 1 color 0 key 3 - Init COMPLETE", ("0xbeef", 3, 4, 1, "9010000:90:1c")),
    ],
)  # fmt: skip
def test_communicators_of_every_version(message: str, row: tuple):
    log = parsed(f"[2026-05-05 06:16:47] {HEAD}{message}\n{HEAD}{message}\n")
    assert rows(log, "communicators", "comm", "rank", "ranks", "device", "bus_id") == [row]
    assert rows(log, "communicators", "host") == ["node-1"]


@pytest.mark.parametrize(
    ("messages", "network", "plugin", "interfaces"),
    [
        (["NET/Socket : Using [0]nmn0:10.120.116.65<0> [1]hsn0:10.253.6.67<0> [2]hsn1:10.253.6.68<0>"],
         "Socket", None, ["nmn0", "hsn0", "hsn1"]),
        (["NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Using network IB"],
         "IB", None, ["mlx5_0:1/RoCE", "mlx5_1:1/IB"]),
        (["NET/Plugin: Failed to find ncclNetPlugin_v6 symbol.", "NET/Plugin: Loaded net plugin AWS Libfabric (v5)",
          "NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol.",
          "NET/Plugin: Failed to find ncclCollNetPlugin symbol (v4 or v5).", "Using network AWS Libfabric"],
         "AWS Libfabric", "AWS Libfabric (v5)", None),
        (["NET/OFI Using aws-ofi-rccl 1.4.0", "NET/OFI Selected Provider is cxi", "Using network AWS Libfabric"],
         "AWS Libfabric", "aws-ofi-rccl 1.4.0 (cxi)", None),
        (["NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "Using network Socket"],
         "Socket", "none", None),
        (["NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower",
          "are not supported.",
          "NET/Plugin: Using internal network plugin.", "Using network Socket"], "Socket", "failed", None),
        (["NET/Plugin: Failed to initialize NET plugin spcx", "Using network IB"], "IB", "failed", None),
        (["NET/Socket : Using [0]ib0:10.0.0.1<0>", "NET/Plugin : No plugin found (libnccl-net.so).",
          "NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.0.0.1<0>"], "IB", "none", ["mlx5_0:1/IB"]),
        # 2.27 on: its own transports are plug-ins, too
        (["NET/Plugin: Could not find: libnccl-net.so", "Failed to open libibverbs.so[.1]",
          "Failed to initialize NET plugin IB", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"],
         "Socket", "none", ["eth0"]),
    ],
)  # fmt: skip
def test_networks(messages: list[str], network: str, plugin: str | None, interfaces: list[str] | None):
    log = parsed("".join(f"{HEAD}{message}\n" for message in messages))
    assert rows(log, "communicators", "network", "plugin", "interfaces") == [(network, plugin, interfaces)]


@pytest.mark.parametrize(
    "message",
    ["NET/IB : No device found.", "Failed to open libibverbs.so[.1]", "Failed to initialize NET plugin IBext_v10"],
)
def test_a_process_without_infiniband(message: str):
    log = parsed(f"{HEAD}{message}\n{HEAD}Using network Socket\n")
    assert rows(log, "communicators", "network", "plugin", "lacks_ib") == [("Socket", None, True)]


def test_a_line_without_a_head_is_of_an_unknown_process():
    log = parsed("NCCL INFO NET/Socket : Using [0]nmn0:10.120.116.65<0> [1]hsn0:10.253.6.67<0>\n")
    assert rows(log, "communicators", "host", "network", "interfaces") == [(None, "Socket", ["nmn0", "hsn0"])]


def test_version_of_rccl_and_of_a_version_to_come():
    init = f"{HEAD}comm 0x7f10 rank 0 nranks 1 cudaDev 0 busId c1000 - Init COMPLETE\n"
    rccl = parsed(f"RCCL version : 2.22.3-HEAD:7d8d67c\n{init}")
    assert rows(rccl, "communicators", "version") == ["2.22.3-HEAD"]
    newer = parsed(f"{HEAD}NCCL version 2.47.1+cuda15.0\n{init}")
    assert rows(newer, "communicators", "version") == ["2.47.1+cuda15.0"]
    assert "2.47.1" in str(newer.problems[0])


def test_records_that_run_into_each_other():
    one = HEAD + "Channel 00 : 0[1] -> 1[2] via P2P/IPC"
    two = "node-1:12:34 [0] NCCL INFO Channel 01 : 1[2] -> 0[1] via P2P/IPC"
    log = parsed(f"{HEAD}Using network IB\n{one}{two}\n{one}{{'train_runtime': 2.0}}\n")
    assert rows(log, "edges", "channel", "transport") == [(0, "P2P/IPC"), (1, "P2P/IPC")]
    assert rows(log, "throughput", "seconds") == [2.0]
    assert rows(log, "edges", "lines") == [2, 1]
    assert log.problems == []
    assert log.records["nccl-debug"] == 4


def test_environment_commands_and_addresses_do_not_enter_a_table():
    log = parsed(
        f"{HEAD}NCCL_SOCKET_IFNAME set by environment to secret0\n{HEAD}Bootstrap : Using eth0:10.1.2.3<0>\n"
        "MY_TOKEN=secret\n+ mpirun --host 10.1.2.4 ./all_reduce_perf --secret\n"
        f"{HEAD}NET/Socket : Using [0]eth0:fe80::1:2%eth0<0>\n{HEAD}Using network Socket\n"
    )
    text = str([table.to_pylist() for table in log.tables.values()])
    assert "eth0" in text
    assert not any(private in text for private in ("secret", "10.1.2", "fe80", "TOKEN"))


def test_broken_edges_are_counted_with_their_lines():
    good = f"{HEAD}Channel 00 : 0[1] -> 1[2] via P2P/IPC\n"
    log = parsed(good + good.replace("0[1]", "x[1]") + good + good.replace(" via ", " vXa ") + good)
    assert rows(log, "edges", *EDGE) == [(0, 0, 1, "P2P/IPC", None, None, 3)]
    assert [(problem.count, problem.lines) for problem in log.problems] == [(2, (2, 4))]


def test_edges_beyond_what_is_held_at_once_are_merged(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jitter.logs.nccl_debug._MOST_MESSAGES", 7)
    monkeypatch.setattr("jitter.logs.nccl_debug._MOST_BATCHES", 3)
    line = HEAD + "Channel {0:02} : {1} -> {2} via {3}\n"
    via = ("P2P/IPC", "NET/IB/0")
    text = "".join(line.format(at % 3, at % 10, at % 10 + 1, via[at % 2]) for at in range(300))
    log = parsed(text)
    assert sum(rows(log, "edges", "lines")) == 300
    assert rows(log, "edges", *EDGE) == rows(parsed(text), "edges", *EDGE)
    assert len(rows(log, "edges", "channel")) == 30
    assert set(rows(log, "edges", "lines")) == {10}


def test_adapters_that_nccl_merges_are_each_read():
    """NCCL 2.21 on makes one device of the ports of an adapter."""
    log = parsed(
        "n7:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [1]mlx5_4:1/RoCE [RO]; OOB ib0\n"
    )
    assert rows(log, "communicators", "interfaces") == [["mlx5_0:1/IB", "mlx5_1:1/IB", "mlx5_4:1/RoCE"]]


def test_environments_that_turn_infiniband_off():
    said = ("NCCL_IB_DISABLE set by environment to 1.", "NCCL_NET set by environment to Socket.",
            "NCCL_IB_DISABLE set by environment to 0.", "NCCL_NET set by environment to IB.")  # fmt: skip
    text = "".join(f"n{at}:7:9 [0] NCCL INFO {words}\nn{at}:7:9 [0] NCCL INFO Using network Socket\n"
                   for at, words in enumerate(said))  # fmt: skip
    found = rows(parsed(text), "communicators", "host", "disables_ib")
    assert found == [("n0", True), ("n1", True), ("n2", None), ("n3", None)]


def test_hosts_without_access_between_gpus():
    said = "P2P is disabled between connected GPUs 2 and 1. You can repress this message with NCCL_IGNORE_D.\n"
    text = "".join(f"n{host}:{pid}:9 [1] NCCL INFO {said}" for host in (1, 2) for pid in (7, 8))
    text += "n3:7:9 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\nn4:7:9 [0] NCCL INFO Using network IB\n"
    found = rows(parsed(text), "communicators", "host", "lacks_p2p")
    assert found == [("n1", True), ("n1", True), ("n2", True), ("n2", True), ("n3", True), ("n4", None)]
