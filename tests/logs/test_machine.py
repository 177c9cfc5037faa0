"""Clocks, errors, bindings and topologies of a machine, each as its tool prints it."""

from pathlib import Path

import pytest
from log_reading import parsed, rows
from published_logs import FIRST, LUMI_NODES, SECOND, affinity_listing

from jitter.logs import parse, sniff
from tests.support.real_recordings import EVIDENCE, needs_evidence

CLOCKS = ("time_ns", "device", "sm_mhz", "power_w", "temp_c", "reasons")
NOON = 1714564800_000_000_000  # 2024-05-01 12:00:00 UTC


@pytest.mark.parametrize("word", ["clocks_event_reasons", "clocks_throttle_reasons"])
@pytest.mark.parametrize("units", [True, False])
def test_nvidia_smi_csv(word: str, units: bool):
    text = (
        f"timestamp, name, index, clocks.current.sm [MHz], power.draw [W], temperature.gpu, {word}.active\n"
        "2024/05/01 12:00:00.250, NVIDIA A100, 0, 1410 MHz, 62.35 W, 31, 0x0000000000000000\n"
        "2024/05/01 12:00:00.250, NVIDIA A100, 1, 1095 MHz, [N/A], 85, 0x0000000000000064\n"
        "2024/05/01 12:00:01.250, NVIDIA A100, 1, damaged\n"
        "2024/05/01 12:00:01.250, NVIDIA A100, 0, 1410 MHz, 62.35 W, 31, 0x0000000000000201\n"
    )
    if not units:
        text = text.replace(" [MHz]", "").replace(" [W]", "").replace(" MHz", "").replace(" W,", ",")
    log = parsed(text)
    assert sniff(text.encode()) == "nvidia-smi"
    assert rows(log, "gpu_clocks", *CLOCKS) == [
        (NOON + 250_000_000, 0, 1410.0, 62.35, 31.0, []),
        (NOON + 250_000_000, 1, 1095.0, None, 85.0, ["sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"]),
        (NOON + 1_250_000_000, 0, 1410.0, 62.35, 31.0, ["gpu_idle", "bit_0x200"]),
    ]
    assert [(problem.count, problem.lines) for problem in log.problems] == [(1, (4,))]


def test_nvidia_smi_csv_with_a_column_for_each_reason():
    text = (
        "index, clocks.sm [MHz], clocks_event_reasons.sw_power_cap, clocks_event_reasons.hw_slowdown\n"
        "3, 1200 MHz, Active, Not Active\n"
    )
    assert rows(parsed(text), "gpu_clocks", *CLOCKS) == [(None, 3, 1200.0, None, None, ["sw_power_cap"])]


def test_nvidia_smi_query():
    gpu = """\
GPU 00000000:{bus}:00.0
    Product Name                          : NVIDIA A100
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : {cap}
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    Temperature
        GPU Current Temp                  : 45 C
        GPU Shutdown Temp                 : 92 C
    GPU Power Readings
        Average Power Draw                : N/A
        Power Draw                        : 301.50 W
        Current Power Limit               : 400.00 W
    Clocks
        Graphics                          : 1410 MHz
        SM                                : {sm} MHz
    Max Clocks
        SM                                : 1980 MHz
"""
    head = "\n==============NVSMI LOG==============\n\nTimestamp    : Wed May  1 12:00:00 2024\nAttached GPUs  : 2\n"
    log = parsed(head + gpu.format(bus="07", cap="Active", sm=1110) + gpu.format(bus="0F", cap="Not Active", sm=1410))
    assert rows(log, "gpu_clocks", *CLOCKS) == [
        (NOON, 0, 1110.0, 301.5, 45.0, ["sw_power_cap"]),
        (NOON, 1, 1410.0, 301.5, 45.0, []),
    ]


def test_the_place_of_a_gpu_in_a_report_of_one_of_eight_is_no_number():
    head = "==============NVSMI LOG==============\n\nAttached GPUs                             : 8\n"
    gpu = "GPU 00000000:13:00.0\n    ECC Errors\n        Aggregate\n            DRAM Uncorrectable            : 4\n"
    log = parsed(head + gpu + "    Clocks\n        SM                                : 1980 MHz\n")
    assert rows(log, "gpu_clocks", "device", "bus_id", "sm_mhz") == [(None, "0000:13:00", 1980.0)]
    assert rows(log, "gpu_errors", "device", "bus_id") == [(None, "0000:13:00")]


def test_a_report_without_an_end_is_not_held(monkeypatch: pytest.MonkeyPatch):
    """An enemy's file names one GPU over and over."""
    monkeypatch.setattr("jitter.logs.declared._MOST_ROWS", 3)
    head = "==============NVSMI LOG==============\n\nAttached GPUs                             : 8\n"
    log = parsed(head + 8 * "GPU 00000000:13:00.0\n    Clocks\n        SM                                : 1980 MHz\n")
    found = rows(log, "gpu_clocks", "device", "sm_mhz")
    assert [sm_mhz for _, sm_mhz in found] == 8 * [1980.0]
    assert [device for device, _ in found[-2:]] == [6, 7]  # the whole report has been read


def test_lanes_and_memory_errors_of_a_report():
    report = """==============NVSMI LOG==============
Timestamp    : Wed May  1 12:00:00 2024
GPU 00000000:10:00.0
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    ECC Errors
        Aggregate
            DRAM Uncorrectable            : 4
    Remapped Rows
        Correctable Error                 : 7
        Uncorrectable Error               : 2
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Clocks
        SM                                : 1980 MHz
"""
    log = parsed(report)
    assert rows(log, "links", "device", "link", "counter", "count") == [
        (0, None, "PCIe generation", 1), (0, None, "PCIe lanes", 8)
    ]  # fmt: skip
    # the report has a time, and what it counts has none
    assert rows(log, "gpu_errors", "time_ns", "device", "bus_id", "memory", "count") == [
        (None, 0, "0000:10:00", "DRAM Uncorrectable errors", 4),
        (None, 0, "0000:10:00", "rows remapped for uncorrectable errors", 2),
        (None, 0, "0000:10:00", "row remapping pending", 1),
    ]
    assert rows(log, "gpu_clocks", "device", "sm_mhz") == [(0, 1980.0)]


def test_a_report_as_xml(tmp_path: Path):
    gpu = """\
	<gpu id="00000000:{bus}:00.0">
		<minor_number>0</minor_number>
		<pci><pci_gpu_link_info>
			<pcie_gen>
				<max_link_gen>4</max_link_gen>
				<current_link_gen>1</current_link_gen>
				<device_current_link_gen>2</device_current_link_gen>
			</pcie_gen>
			<link_widths>
				<max_link_width>16x</max_link_width>
				<current_link_width>8x</current_link_width>
			</link_widths>
			<replay_counter>3</replay_counter>
		</pci>
		<clocks_throttle_reasons>
			<clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
			<clocks_throttle_reason_sw_power_cap>{cap}</clocks_throttle_reason_sw_power_cap>
		</clocks_throttle_reasons>
		<clocks_event_reasons_counters_sw_therm_slowdown>7 us</clocks_event_reasons_counters_sw_therm_slowdown>
		<aggregate>
			<dram_correctable>9</dram_correctable>
			<dram_uncorrectable>4</dram_uncorrectable>
		</aggregate>
		<remapped_rows>
			<remapped_row_corr>5</remapped_row_corr>
			<remapped_row_unc>2</remapped_row_unc>
			<remapped_row_pending>Yes</remapped_row_pending>
			<remapped_row_failure>No</remapped_row_failure>
		</remapped_rows>
		<gpu_temp>45 C</gpu_temp>
		<gpu_power_readings>
			<average_power_draw>301.50 W</average_power_draw>
		</gpu_power_readings>
		<module_power_readings>
			<average_power_draw>900.00 W</average_power_draw>
		</module_power_readings>
		<clocks>
			<sm_clock>{sm} MHz</sm_clock>
		</clocks>
		<max_clocks>
			<sm_clock>1980 MHz</sm_clock>
		</max_clocks>
	</gpu>
"""
    path = tmp_path / "node7.xml"
    head = '<?xml version="1.0" ?>\n<nvidia_smi_log>\n\t<timestamp>Wed May  1 12:00:00 2024</timestamp>\n'
    path.write_text(
        head + gpu.format(bus="07", cap="Active", sm=1110) + gpu.format(bus="0F", cap="Not Active", sm=1410)
    )
    assert sniff(path) == "nvidia-smi-q"
    log = parsed(path.read_text())
    assert rows(log, "gpu_clocks", *CLOCKS) == [
        (NOON, 0, 1110.0, 301.5, 45.0, ["sw_power_cap"]),
        (NOON, 1, 1410.0, 301.5, 45.0, []),
    ]
    assert rows(log, "links", "counter", "count")[:4] == [
        ("PCIe generation", 1), ("PCIe lanes", 8), ("PCIe replays", 3),
        ("nvidia-smi's counter of sw_therm_slowdown, us", 7),
    ]  # fmt: skip
    assert rows(log, "gpu_errors", "time_ns", "bus_id", "memory", "count")[:3] == [
        (None, "0000:07:00", "dram_uncorrectable errors", 4),
        (None, "0000:07:00", "rows remapped for uncorrectable errors", 2),
        (None, "0000:07:00", "row remapping pending", 1),
    ]


def test_rows_that_could_not_be_remapped():
    text = "==============NVSMI LOG==============\nGPU 00000000:18:00.0\n    ECC Errors\n        Aggregate\n"
    text += "            SRAM Uncorrectable SEC-DED    : 2\n            SRAM Threshold Exceeded       : No\n"
    text += "    Remapped Rows\n        Uncorrectable Error               : 0\n        Pending : No\n"
    text += "        Remapping Failure Occurred        : Yes\n"
    found = rows(parsed(text), "gpu_errors", "bus_id", "memory", "count")
    assert found == [
        ("0000:18:00", "SRAM Uncorrectable SEC-DED errors", 2), ("0000:18:00", "row remapping failed", 1)
    ]  # fmt: skip


def test_dcgmi_dmon():
    log = parsed(
        "#Entity   SMCLK                       DVCCTR                      TMPTR       POWER\nID\n"
        "GPU 0     1410                        0                           45          301.500\n"
        "GPU 1     1095                        4                           N/A         400.100\n"
        "GPU 1     1095   4\n"
    )
    assert rows(log, "gpu_clocks", *CLOCKS) == [
        (None, 0, 1410.0, 301.5, 45.0, []),
        (None, 1, 1095.0, 400.1, None, ["sw_power_cap"]),
    ]
    assert [problem.lines for problem in log.problems] == [(5,)]


def test_rocm_smi():
    log = parsed(
        "===== ROCm System Management Interface =====\n===== Concise Info =====\n"
        "GPU   Temp   AvgPwr  SCLK   MCLK   Fan    Perf   PwrCap  VRAM%  GPU%\n"
        "0     46.0c  92.0W   800Mhz 1600Mhz 0%    manual 500.0W  0%     0%\n"
        "1     52.0c  N/A     800Mhz 1600Mhz 0%    manual 0.0W   0%     0%\n"
        "===== End of ROCm SMI Log =====\n0     46.0c  92.0W   800Mhz 1600Mhz 0%    manual 500.0W  0%     0%\n"
        "Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK     Fan  Perf  PwrCap\n"
        "2       4     0x74a1,   28851  45.0°C      140.0W    NPS1, SPX, 0        132Mhz  900Mhz   0%   auto  750.0W\n"
    )
    assert rows(log, "gpu_clocks", *CLOCKS[1:]) == [
        (0, 800.0, 92.0, 46.0, None),
        (1, 800.0, None, 52.0, None),
        (2, 132.0, 140.0, 45.0, None),
    ]


def test_nvidia_smi_dmon_with_and_without_times():
    log = parsed(
        "# gpu    pwr  gtemp  mtemp     sm   mclk   pclk \n# Idx      W      C      C      %    MHz    MHz \n"
        "    0    650     55     60     99   2619   1980 \n    1      -     88      -     99   2619   1200 \n"
        "#Date       Time        gpu    pwr  gtemp   pclk \n#YYYYMMDD   HH:MM:SS    Idx      W      C    MHz \n"
        " 20240610   06:13:19      3    640     70   1335 \n"
    )
    assert log.problems == []
    assert rows(log, "gpu_clocks", "device", "sm_mhz", "power_w", "temp_c", "time_ns") == [
        (0, 1980.0, 650.0, 55.0, None),
        (1, 1200.0, None, 88.0, None),
        (3, 1335.0, 640.0, 70.0, 1_717_999_999_000_000_000),
    ]


@needs_evidence
def test_kernel_log():
    path = EVIDENCE / "gpu_health/dmesg-with-xid-119.log"
    log = parse(path)
    assert sniff(path) == "kernel-log"
    assert rows(log, "gpu_errors", "bus_id", "code") == [("0000:9b:00", 119)] * 5
    first = 1740327858  # 2025-02-23 16:24:18 UTC
    assert rows(log, "gpu_errors", "time_ns") == [(first + later) * 10**9 for later in (0, 6, 12, 174, 355)]


def test_kernel_log_of_every_kind():
    xid = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
    log = parsed(
        f"[  123.456789] {xid}\nFeb 23 16:24:18 node-7 kernel: [ 123.4] {xid}\n"
        f"2025-02-23T16:24:18.500000+01:00 node-8 kernel: {xid}\n"
        "[Sun Feb 23 16:24:18 2025] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32\n"
        "NVRM: Xid (0000:82:00): 31, Ch 00000010\nNVRM: Xid (PCI:zz): 31\nXid errors are bad\n"
    )
    assert rows(log, "gpu_errors", "time_ns", "host", "bus_id", "code") == [
        (None, None, "0000:9b:00", 79),
        (67710258 * 10**9, "node-7", "0000:9b:00", 79),  # of no year
        (1740324258_500_000_000, "node-8", "0000:9b:00", 79),
        (1740327858_000_000_000, None, "0000:05:00", 12028),
        (None, None, "0000:82:00", 31),
    ]
    assert [problem.lines for problem in log.problems] == [(6,)]


def test_a_gpu_that_fell_off_the_bus_without_an_xid():
    """The driver says it in several lines (nv.c, osinit.c), which syslog joins; other GPUs are but not supported."""
    gpu = "NVRM: The NVIDIA GPU 0000:{}:00.0"
    log = parsed(
        f"[ 1843.308145] {gpu.format('b3')}\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        f"Nov 25 10:00:00 node-7 kernel: [ 18.4] {gpu.format('1b')}#012NVRM: (PCI ID: 10de:2330) installed in\n"
        f"[ 12.1] {gpu.format('41')} (PCI ID: 10de:1b80)\nNVRM: installed in this system is not supported\n"
        f"[ 12.2] {gpu.format('42')} installed in the system\n"
    )
    assert rows(log, "gpu_errors", "host", "bus_id", "code") == [(None, "0000:b3:00", 79), ("node-7", "0000:1b:00", 79)]
    assert log.problems == []


def _far_ranks(masks: list[int]) -> list[int]:
    log = parsed(LUMI_NODES + affinity_listing(masks))
    assert log.problems == []
    assert set(map(tuple, rows(log, "bindings", "gpus"))) == {tuple(range(8))}
    near = dict(rows(log, "topology", "gpu", "near_cpus"))
    bindings = rows(log, "bindings", "rank", "cpus")
    assert [rank for rank, _ in bindings] == list(range(16))
    assert all(len(cpus) == 7 for _, cpus in bindings)
    return [rank for rank, cpus in bindings if not set(cpus) <= set(near[rank % 8])]


def test_published_bindings_with_gpu_of_the_local_rank():
    assert _far_ranks(FIRST) == [rank for rank in range(16) if rank not in {2, 3, 10, 11}]
    assert _far_ranks(SECOND) == []


def test_bindings_as_scripts_and_slurm_print_them():
    log = parsed(
        "Rank 3 --> pid 17's current affinity mask: ff,00000000\n5: pid 17's current affinity list: 0-3,8\n"
        "cpu-bind=MASK - nid001, task  2  0 [19884]: mask 0x4000 set\n"
        "cpu-bind-cores=MASK - nid002, task 11  3 [19885]: mask 0x3 set\n"
        "0 -- GPUS 4 -- pid 1's current affinity mask: 11 -- GPUS 5 -- pid 2's current affinity mask: 2\n"
        "pid 17's current affinity mask: xyz\n"
    )
    assert rows(log, "bindings", "rank", "host", "cpus", "gpus") == [
        (3, None, list(range(32, 40)), None),
        (5, None, [0, 1, 2, 3, 8], None),
        (2, "nid001", [14], None),
        (11, "nid002", [0, 1], None),
        (0, None, [0, 4], [4]),
        (None, None, [1], [5]),
    ]
    assert [problem.lines for problem in log.problems] == [(6,)]


@needs_evidence
def test_bindings_and_topology_of_mi300a():
    path = EVIDENCE / "affinity/mi300a_affinity_readme.md"
    log = parse(path)
    assert sniff(path) == "hello-jobstep"
    near = dict(rows(log, "topology", "gpu", "near_cpus"))
    assert near == {gpu: [*range(24 * gpu, 24 * gpu + 24), *range(96 + 24 * gpu, 120 + 24 * gpu)] for gpu in range(4)}
    bindings = rows(log, "bindings", "rank", "cpus", "gpus")
    assert len(bindings) == 80
    unbound, bound = bindings[:4], bindings[8:12]
    assert sorted(unbound) == [(rank, [cpu], [0, 1, 2, 3]) for rank, cpu in enumerate((1, 121, 144, 72))]
    assert sorted(bound) == [(rank, [cpu], [rank]) for rank, cpu in enumerate((96, 25, 145, 81))]
    assert all(set(cpus) <= set(near[gpus[0]]) for _, cpus, gpus in bound)


def test_threads_of_a_rank_make_one_binding():
    line = (
        "MPI 000 - OMP {omp:03} - HWT {cpu:03} - Node nid1 - RunTime_GPU_ID 0 - ROCR_VISIBLE_GPU_ID 5 - GPU_Bus_ID c1\n"
    )
    text = "".join(line.format(omp=omp, cpu=cpu) for omp, cpu in ((0, 4), (1, 6), (0, 8)))
    expected = [(0, "nid1", [4, 6], [5]), (0, "nid1", [8], [5])]
    assert rows(parsed(text), "bindings", "rank", "host", "cpus", "gpus") == expected


def test_nvidia_topology():
    text = (
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV12\tPXB\tPXB\tSYS\t0-3,8-9\t0\t\tN/A\nGPU1\tNV12\t X \tSYS\tSYS\tSYS\t4-7\t1\t\tN/A\n"
        "NIC0\tPXB\tSYS\t X \tPIX\tSYS\t\t\t\t\n\nLegend:\n\n"
        "  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_3\n"
    )
    log = parsed(text)
    assert rows(log, "topology", "gpu", "near_cpus", "near_nics") == [
        (0, [0, 1, 2, 3, 8, 9], ["mlx5_0", "mlx5_3"]),
        (1, [4, 5, 6, 7], []),
    ]
    older = (
        "        GPU0    GPU1    mlx5_0  CPU Affinity\n"
        "GPU0     X      NV1     PHB     0-19\nGPU1    NV1      X      SYS     20-39\n"
    )
    assert rows(parsed(older), "topology", "gpu", "near_cpus", "near_nics") == [
        (0, list(range(20)), ["mlx5_0"]),
        (1, list(range(20, 40)), []),
    ]


@pytest.mark.parametrize(("name", "nic"), [("perfquery_mlx5_3.log", "mlx5_3"), ("perfquery.log", None)])
def test_the_name_of_a_file_names_the_adapter_that_its_counters_do_not(name: str, nic: str | None):
    text = "# Port counters: Lid 12 port 1\nPortSelect:......................1\nSymbolErrorCounter:..............7\n"
    assert rows(parsed(text, f"node1/{name}"), "links", "nic", "count") == [(nic, 7)]
