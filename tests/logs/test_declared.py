"""Lines of each declared format, as the program prints them, and the rows that they become."""

import json
import time
from typing import Any

import pytest
from log_reading import parsed, rows

from jitter.logs import parse, sniff
from tests.support.real_recordings import EVIDENCE, needs_evidence

MEGATRON = (
    " [2025-05-27 15:23:07] iteration        1/    24000 | consumed samples:          1024 | elapsed time per "
    "iteration (ms): 2048.0 | throughput per GPU (TFLOP/s/GPU): 40.4 | learning rate: 1.500000E-06 | global batch "
    "size:  1024 | lm loss: 1.192634E+01 |"
)
DEEPSPEED = (
    "[2023-11-07 01:55:23,714] [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, "
    "RunningAvgSamplesPerSec=25.025771473496132, CurrSamplesPerSec=25.704280480541442, MemAllocated=4.32GB\n"
    "[2022-08-29 06:58:56,176] [INFO] [timer.py:198:stop] 0/20, RunningAvgSamplesPerSec=232.7340551694273, "
    "CurrSamplesPerSec=227.48090316379353, MemAllocated=0.36GB, MaxMemAllocated=15.06GB"
)
TITAN = (
    "[rank0]:[titan] 2025-06-16 22:31:04,970 - root - INFO - step: 210  loss:  6.0388  memory: 49.66GiB(52.28%)  "
    "tps: 5,593  tflops: 323.92  mfu: 32.75%"
)
VERL = (
    "(TaskRunner pid=77) step:2 - global_seqlen/min:320.0 - training/global_step:2 - timing_s/gen:208.1 - "
    "timing_s/step:330.5 - perf/time_per_step:330.5 - perf/throughput:np.float64(524.25)\n"
    "step:3 - actor/entropy:0.3 - timing_s/step:310.0\n"
)
AMD_WATCH = (
    "timestamp,gpu,gfx_activity,jpeg_activity,socket_power,throttle_status,power_management,gfx_0_clk,mem_0_clk,edge,"
    "hotspot,mem\n"
    "2026-03-01T00:00:00.250,0,0,\"['N/A', 'N/A']\",535,UNTHROTTLED,ENABLED,1404,2000,N/A,40,25\n"
    "1772323200,1,0,\"['N/A', 'N/A']\",990,THROTTLED,ENABLED,1150,2000,N/A,95,25\n"
)
ROCM_JSON = (
    '{"system": {"Driver version": "6.8.5"}, "card0": {"GPU use (%)": "37", '
    '"Temperature (Sensor junction) (C)": "61.0", "sclk clock speed:": "(1700Mhz)", '
    '"Average Graphics Package Power (W)": "481.0"}, "card3": {"GPU use (%)": "5"}}\n'
)
AMD_JSON = """\
{"gpu_data": [
    {"gpu": 3, "usage": {"gfx_activity": {"value": 99, "unit": "%"}, "vcn_activity": ["N/A"]},
     "power": {"socket_power": {"value": 990, "unit": "W"}, "throttle_status": "THROTTLED"},
     "clock": {"gfx_0": {"clk": {"value": 1150, "unit": "MHz"}, "min_clk": "N/A"}, "gfx_1": {"clk": "N/A"}},
     "temperature": {"edge": "N/A", "hotspot": {"value": 95, "unit": "C"}}},
    "no GPU"
]}
"""
ROCM_CSV = (
    "device,Temperature (Sensor edge) (C),Temperature (Sensor junction) (C),sclk clock speed:,sclk clock level:,"
    "Average Graphics Package Power (W),Max Graphics Package Power (W)\n"
    "card0,45.0,61.0,(1700Mhz),1,481.0,560.0\ncard1,44.0,60.0\n"
)
LABELS = 'UUID="GPU-1",pci_bus_id="00000000:3B:00.0",device="nvidia0",modelName="A100",Hostname="gpu-7"'
DCGM = (
    "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
    f'DCGM_FI_DEV_SM_CLOCK{{gpu="0",{LABELS}}} 1410\n'
    'DCGM_FI_DEV_GPU_TEMP{gpu="1", UUID="GPU-2"} 9223372036854775794\n'
    'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="1",UUID="GPU-2"} 4 1712345678000\n'
    f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",{LABELS}}} 79\nDCGM_FI_DEV_XID_ERRORS{{gpu="1",UUID="GPU-2"}} 0\n'
)
XID = "DCGM_FI_DEV_XID_ERRORS"
XIDS = "".join(
    f'{XID}{{gpu="{gpu}",Hostname="n7"}} {xid} {1712345678 + 15 * at}000\n'
    for at, xids in enumerate([(31, 0), (31, 0), (79, 13), (79, 13), (0, 13), (79, 13)])
    for gpu, xid in enumerate(xids)
)
SERIES = {"__name__": XID, "gpu": "0", "Hostname": "n7"}
PROMETHEUS = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {"metric": {**SERIES, "__name__": "DCGM_FI_DEV_SM_CLOCK"}, "values": [[1712345678, "1980"]]},
            {"metric": SERIES, "values": [[1712345678, "0"], [1712345693.25, "79"], [1712345708, "79"]]},
            {"metric": {}, "values": [[1712345678, "79"]]},
        ],
    },
}
NVLINK = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-abcdefab)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    "GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-abcdefac)\n\t Link 0: Replay Errors: 0\n\t Link 0: CRC Errors: 891\n"
)
NVLINK_OF_BLACKWELL = (
    "GPU 0: NVIDIA B200 (UUID: GPU-abcdefab)\n\t Link 0: Tx packets: 12345\n\t Link 0: Link recovery failed events: 1\n"
    "\t Link 0: Effective Errors: 4\n\t Link 0: Symbol BER: 15e-255\n"
)
TITAN_IN_COLOURS = (
    "[rank0]:[titan] 2025-02-01 10:00:00,123 - root - INFO - \x1b[31mstep:  5  \x1b[32mloss:  7.1234  "
    "\x1b[34mmemory: 35.15GiB(36.99%)  \x1b[36mtps: 6,543  \x1b[35mtflops: 380.12  \x1b[35mmfu: 38.43%\x1b[39m"
)
IMAGENET = "Epoch: [2][  10/5005]\tTime  0.345 ( 0.612)\tData  0.012 ( 0.250)\tLoss 6.9e+00 (6.9e+00)"
DLL = "DLL 2020-11-12 10:00:00.250000 - Iteration: 3  train.loss : 7.0 None  train.total_ips : 20345.12 images/s"
AMD_MONITOR = (
    "gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,enc,mem_clock,vram_used,vram_total\n"
    "0,139,41,36,132,0,0,N/A,900,283,196300\n"
)
AMD_METRIC = """\
GPU: 3
    USAGE:
        GFX_ACTIVITY: 100 %
    POWER:
        SOCKET_POWER: 750 W
        THROTTLE_STATUS: THROTTLED
    CLOCK:
        GFX_0:
            CLK: 1400 MHz
            MAX_CLK: 2100 MHz
        MEM_0:
            CLK: 900 MHz
    TEMPERATURE:
        EDGE: N/A
        HOTSPOT: 99 °C
    PCIE:
        WIDTH: 8
        REPLAY_COUNT: 77
"""
ROCM_ALL = "GPU[1]\t\t: Current Socket Graphics Package Power (W): 139.0\nGPU[1]\t\t: sclk clock level: 1: (1700Mhz)\n"
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:e09d:7303:0012:fb5a
	state:		 4: ACTIVE
	phys state:	 5: LinkUp
	rate:		 400 Gb/sec (4X NDR)
Infiniband device 'mlx5_1' port 1 status:
	state:		 1: DOWN
	rate:		 40 Gb/sec (4X QDR)
"""
IBV_DEVINFO = (
    "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"
    "hca_id:\tmlx5_1\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_DOWN (1)\n"
)
FABRIC_HEALTH = """\
==============NVSMI LOG==============
Attached GPUs                             : 2
GPU 00000000:3B:00.0
    GPU Recovery Action                   : None
    Fabric
        Health
            Bandwidth                     : Full
            Route Unhealthy               : N/A
        TPC Repair Pending                : No
GPU 00000000:9B:00.0
    GPU Recovery Action                   : Reset
    Fabric
        Health
            Bandwidth                     : Degraded
            Route Unhealthy               : True
    Remapped Rows
        Pending                           : GPU requires reset
    ECC Errors
        Channel Repair Pending            : Yes
        TPC Repair Pending                : GPU requires reset
"""
NODE_EXPORTER = """\
# TYPE node_infiniband_port_transmit_wait_total counter
node_infiniband_port_transmit_wait_total{device="mlx5_0",port="1"} 1.2345e+06
node_infiniband_state_id{device="mlx5_1",port="1"} 1
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10
node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 7
"""
AMD_EXPORTER = """\
gpu_clock{clock_index="0",clock_type="GPU_CLOCK_TYPE_SYSTEM",gpu_id="3",hostname="n7",serial_number="S3"} 1533
gpu_clock{clock_index="8",clock_type="GPU_CLOCK_TYPE_MEMORY",gpu_id="3",hostname="n7",serial_number="S3"} 1292
amd_gpu_junction_temperature{gpu_id="3",hostname="n7"} 76
pcie_replay_count{gpu_id="3",hostname="n7"} 12
gpu_ecc_uncorrect_total{gpu_id="3",hostname="n7"} 0
"""
PORT = {"__name__": "node_infiniband_link_downed_total", "device": "mlx5_0", "port": "1", "instance": "n7.cluster:9100"}
PROMETHEUS_OF_PORT = {"data": {"resultType": "vector", "result": [{"metric": PORT, "value": [1712345678, "3"]}]}}
ETHTOOL_OF_PORT = """\
Settings for ens1f0np0:
	Supported ports: [ FIBRE ]
	Speed: 25000Mb/s
	Link detected: yes
Settings for docker0:
	Speed: Unknown!
	Link detected: no
Settings for ens1f1np1:
	Speed: Unknown!
	Link detected: no
"""
KERNEL_OF_DEVICES = """\
ice 0000:b1:00.0 ens8f0: NETDEV WATCHDOG: CPU: 38: transmit queue 14 timed out 8069 ms
Nov 12 03:14:15 n8 kernel: NETDEV WATCHDOG: ens1f0 (mlx5_core): transmit queue 3 timed out
mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, Bus stuck(I2C or data shorted)
nvme nvme1: I/O tag 123 (307b) opcode 0x1 (I/O Cmd) QID 4 timeout, aborting req_op:WRITE(1) size:4096
blk_update_request: I/O error, dev sdb, sector 12
blk_update_request: I/O error, dev fd0, sector 0
"""
IPMI_SEL = """\
   1 | 02/23/2025 | 16:24:18 | Temperature CPU1 Temp | Upper Critical going high | Asserted
   2 | 02/23/2025 | 16:24:18 | Temperature CPU1 Temp | Upper Critical going high | Deasserted
  1a | 02/23/25 | 04:24:18 PM UTC | Power Supply PS1 Status | Failure detected | Asserted
   3 |  Pre-Init  |Pre-Init   | Memory #0x53 | Correctable ECC | Asserted
   5 | 02/23/2025 | 16:24:18 | Power Supply PS2 | Presence detected | Asserted
"""
PODS = """\
NAMESPACE   NAME      READY   STATUS      RESTARTS   AGE
jobs        train-3   0/1     OOMKilled   1          20m
jobs        train-4   1/1     Running     0          20m
jobs        train-5   0/1     Evicted     0          20m
"""
NODES_OF_KUBERNETES = """\
NAME    STATUS                        ROLES    AGE   VERSION
gpu-6   Ready                         <none>   20d   v1.29.3
gpu-7   NotReady,SchedulingDisabled   <none>   20d   v1.29.3
"""
KERNEL_OF_HOST = (
    "<4>1 2024-11-12T03:14:15.003Z n8 kernel - - - mce: CPU3: Core temperature above threshold, cpu clock throttled "
    "(total events = 12)\n"
    "Nov 12 03:14:15 n8 kernel: nfs: server 10.1.1.1 not responding, still trying\n"
    "Nov 12 03:14:15 n8 kernel: Lustre: scratch-OST0003-osc-ffff9: Connection to scratch-OST0003 (at 10.0.0.3@o2ib) "
    "was lost; in progress operations using this service will wait\n"
    "Nov 12 03:14:15 n8 kernel: Lustre: 99:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ Request sent has timed "
    "out for slow reply: [sent 17]  req@00 x1/t0(0) o4->scratch-OST0007-osc-ffff9@10.0.0.3@o2ib:6/4 lens 488/448\n"
    "Nov 12 03:14:15 n8 kernel: Lustre: scratch-OST0003-osc-ffff9: Connection restored to 10.0.0.3@o2ib\n"
    "Nov 12 03:14:15 n8 kernel: LustreError: 167-0: scratch-MDT0001-mdc-ff8: This client was evicted by scratch;\n"
    "Nov 12 03:14:15 n8 kernel: nfs: server 10.1.1.1 not responding, timed out\n"
    "Nov 12 03:14:15 n8 kernel: nfs: server 10.1.1.1 OK\n"
    "Nov 12 03:14:15 n8 kernel: CPU9: Package temperature is above threshold, cpu clock is throttled (total)\n"
    "Nov 12 03:14:15 n8 kernel: watchdog: BUG: soft lockup - CPU#9 stuck for 23s! [kworker/9:1:214]\n"
    "Nov 12 03:14:15 n8 kernel: watchdog: BUG: soft lockup - CPU#11 stuck for 94s!\n"
    "Nov 12 03:14:15 n8 kernel: rcu: INFO: rcu_sched self-detected stall on CPU\n"
    "Nov 12 03:14:15 n8 kernel: EDAC MC0: 3 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)\n"
)
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Number of ports: 1
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Base lid: 48
		Link layer: InfiniBand
CA 'mlx5_1'
	Port 1:
		State: Down
		Physical state: Polling
		Rate: 10
"""
RDMA = """\
link mlx5_0/1 rx_write_requests 0 out_of_buffer 135 duplicate_request 0 packet_seq_err 7 local_ack_timeout_err 1822
link mlx5_1/1 state ACTIVE rx_write_requests 9 roce_adp_retrans 0 roce_adp_retrans_to 4 netdev eth1
"""
MLXLINK = """\
Operational Info
----------------
State                           : \x1b[32mActive\x1b[0m
Physical state                  : \x1b[32mLinkUp\x1b[0m
Physical Counters and BER Info
------------------------------
Effective Physical Errors       : \x1b[33m1822\x1b[0m
Effective Physical BER          : 15E-255
Link Down Counter               : 2
"""
ETHTOOL = """\
NIC statistics:
     rx_crc_errors_phy: 31
     tx_crc_errors_phy_total: 5
     rx_discards_phy: 4
     rx_prio3_pause: 12
     rx_prio3_pause_duration: 8
"""
RDMA_OF_EFA = "link rdmap0s6/1 \n    tx_bytes 8 \n    retrans_pkts 30104 \n    retrans_timeout_events 1832 \n"
IBQUERYERRORS = """\
Errors for 0x200002 "hxa-su1-leaf-r1"
   GUID 0x200002 port ALL: [SymbolErrorCounter == 250] [LinkDownedCounter == 3]
   GUID 0x200002 port 33: [SymbolErrorCounter == 250] [LinkDownedCounter == 3]
Errors for "rd240 mlx4_0"
   GUID 0xe41d2d0300e0bae1 port 1: [PortXmitWait == 4294967295]
"""
DMON = """\
#Date       Time        gpu    pwr   temp     sm   mclk   pclk  pviol  tviol
#YYYYMMDD   HH:MM:SS    Idx      W      C      %    MHz    MHz      %   bool
 20260529   09:51:25      0     15     27      0    405    225      0      0
 20260529   09:51:25      1    700     88     99   2619   1200     40      1
 20260529   09:51:25      2      5     28      0    405    225      -      -
"""
DMON_CSV = "# gpu, pwr, gtemp, pclk, pviol, tviol\n# Idx, W, C, MHz, %, bool\n0, 24, 46, 1151, 0, 1\n"
VIOLATIONS = (
    f'DCGM_FI_DEV_POWER_VIOLATION{{gpu="0",{LABELS}}} 12000\nDCGM_FI_DEV_PCIE_REPLAY_COUNTER{{gpu="0",{LABELS}}} 0\n'
)
REPORT_OF_LIMITS = """\
==============NVSMI LOG==============

GPU 00000000:3B:00.0
    PCI
        Replays Since Reset                            : 7
    Clocks Event Reasons
        SW Power Cap                                   : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                               : 12234991553 us
        SW Thermal Slowdown                            : 0 us
"""
PERFQUERY = (
    "# Port counters: Lid 5 port 1 (CapMask: 0x5300)\nPortSelect:......................1\n"
    "CounterSelect:...................0x0000\nSymbolErrorCounter:..............1542\nPortXmitWait:....................7\n"
)
FABRIC = (
    "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id "
    "00000000:86:00.0 physical id 3 port 33\n"
)

TORCHRUN = """\
=====================================
train.py FAILED
-------------------------------------
Failures:
[1]:
  time      : 2025-03-11_18:33:21
  host      : n3
  rank      : 9 (local_rank: 1)
  exitcode  : 1 (pid: 3400)
-------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-03-11_18:33:20
  host      : n3.cluster
  rank      : 8 (local_rank: 0)
  exitcode  : -9 (pid: 3401)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 3401
=====================================
  rank      : 5 (local_rank: 1)
"""
NCCL_NET = (
    "[2025-11-19 18:02:33] n7:228:229 [0] transport/net_ib.cc:2470 NCCL WARN NET/IB: Got completion from peer "
    "10.7.0.1<3512> with status=12 opcode=129 len=65 vendor err 129 (Recv) localGid ::ffff:1 remoteGids::ffff:2 hca "
    "mlx5_6\nn8:34:35 [0] net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
    "3: n9.x.org:7:8 [4] net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n8<379> with error 99, opcode 2\n"
    "n8:34:35 [0] net_ib.cc:25 NCCL WARN NET/IB : mlx5_1:2 Got non-fatal async event: port error(10)\n"
    "n8:34:35 [0] net_ib.cc:25 NCCL WARN NET/IB : mlx5_1:2 Got non-fatal async event: client reregistration(17)\n"
    "n8:34:35 [0] ibvwrap.cc:26 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, "
    "curr state INIT\nn8:34:35 [0] ibvwrap.cc:26 NCCL WARN Call to ibv_create_qp failed\n"
    "n5:4:5 [0] ofi_process_cq:82 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 21. Error: unknown error. "
    "Completed length: 0, Request: { dev: 0, size: 0, state: CREATED, type: SEND }\n"
)
PORTS = (
    "Feb 14 05:03:41 n3 kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN\n"
    "Feb 14 05:03:42 n3 kernel: mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE\n"
    "[ 77.5] mlx5_core 0000:3b:00.0 ens1f0np0: Link down\n"
    "[ 78.5] ice 0000:17:00.0 ens2f0: NIC Link is Down\n"
    "[ 78.6] cxi_core 0000:21:00.0: cxi0[hsn0]: CXI_EVENT_LINK_DOWN\n"
    "[ 79.5] mlx5_core 0000:ca:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count\n"
    "Jan 10 10:54:17 n4 [57253.35] bond0: (slave ens4f0): link status definitely down, disabling slave\n"
    "[ 79.5] bonding: bond0: link status definitely down for interface eth1, disabling it\n"
    "[ 79.5] mlx5_core 0000:5c:00.0: mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, "
    "Cable error, High Temperature\n"
    "[ 79.5] mlx5_core 0000:5e:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at "
    "0000:5d:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)\n"
    "[ 79.5] pci 0000:05:00.0: 4.000 Gb/s available PCIe bandwidth, limited by 5.0 GT/s PCIe x1 link at 0000:00:1c.1\n"
    "[ 79.6] ata1: SATA link down (SStatus 0)\n[ 79.7] pcieport 0000:00:1c.0: pciehp: Slot(0): Link Down\n"
)
AMDGPU = (
    "2024-08-18T01:19:31.5Z n4 kernel: amdgpu 0000:c3:00.0: amdgpu: GPU reset begin!\n"
    "[8390.7] amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!\n"
    "[8391.7] amdgpu 0000:05:00.0: amdgpu: socket: 0 3 new uncorrectable hardware errors detected in umc block\n"
    "[8392.7] amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors\n"
)
SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   64C    P0            640W /  700W |   71234MiB /  81559MiB |    100%      Default |
|                                         |                        |             Disabled |
|  11  Tesla V100-SXM2...  On   | 00000000:29:00.0 Off |                    2 |
| N/A   34C    P0    N/A / 300W |      0MiB / 16384MiB |      0%      Default |
|   3  ERR!                On   | 00000000:9B:00.0 Off |                 ERR! |
| ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 16384MiB |      0%      Default |
"""
HOST = (
    "[Sun Feb 23 16:24:18 2025] pcieport 0000:a0:01.1: AER: Multiple Corrected error received: 0000:a1:00.0\n"
    "2025-02-23T16:24:18.5+01:00 n8 kernel: pcieport 0000:a0:01.1: AER: Uncorrectable (Non-Fatal) error message "
    "received from 0000:a1:00.0\n2025-02-23T16:24:18.5+01:00 n8 kernel: watchdog: BUG: soft lockup - CPU#3 stuck for "
    "22s! [python:1234]\nFeb 23 16:24:18 n7 kernel: [ 1.4] INFO: task kworker/u8:2:4321 blocked for more than 120 "
    "seconds.\n"
)
KILLED = (
    "Feb 23 16:24:18 n7 kernel: Memory cgroup out of memory: Killed process 571 (python) total-vm:2071252kB\n"
    "slurmstepd-n5: error: Detected 1 oom-kill event(s) in StepId=9.0. Some of your processes may have been killed\n"
    "slurmstepd: error: Detected 2 oom_kill events in StepId=9.0. Some of the step tasks have been OOM Killed.\n"
    "srun: error: n5: task 0: Out Of Memory\nsrun: error: n6: tasks 0-2,5: Exited with exit code 134\n"
    "srun: error: Node failure on n9\n[2025-02-23T16:24:18.1] Killing JobId=4567 on failed node n10\n"
    "srun: launch/slurm: _step_signal: Terminating StepId=9.0\n"
)
SACCT = (
    "JobID|JobName|State|ExitCode|NodeList|Start|End\n"
    "7|train|NODE_FAIL|0:0|n[1-4]|2025-02-23T15:24:18|2025-02-23T16:24:18\n"
    "7.0|train|OUT_OF_MEMORY|0:125|n3|2025-02-23T15:24:18|2025-02-23T16:24:18\n"
    "8|train|COMPLETED|0:0|n[1-4]|2025-02-23T17:24:18|2025-02-23T18:24:18\n9|train|RUNNING|0:0|n1|2025-02-24T15:24:18|Unknown\n"
)
NODES = (
    "NodeName=n1 Arch=x86_64 CPUTot=128\n   State=IDLE ThreadsPerCore=1\n   Reason=old [root@2025-02-01T10:00:00]\n\n"
    "NodeName=n2 Arch=x86_64 CPUTot=128\n   State=DOWN*+DRAIN ThreadsPerCore=1\n"
    "   Reason=Kill task failed [root@2025-02-23T16:24:18]\n\nNodeName=n3 CPUTot=128\n   State=MIXED+DRAIN Weight=1\n"
    "NodeName=n4 CPUTot=128 State=IDLE Reason=old [root@2025-02-01T10:00:00]\n"
    "NodeName=n5 CPUTot=128 State=DOWN Weight=1 Reason=Not responding [slurm@2025-02-23T16:24:18]\n"
)
SLURMCTLD = """\
[2025-02-23T16:24:18.123] error: Nodes n[3-4] not responding, setting DOWN
[2025-02-23T16:24:18.123] Node n3 now responding
[2025-02-23T16:24:18.123] update_node: node n5 reason set to: Xid 79
[2025-02-23T16:24:18.123] update_node: node n5 state set to DRAINING
[2025-02-23T16:24:18.123] error: Setting node n6 state to INVAL with reason:gres/gpu count reported lower (7 < 8)
"""
SINFO = """\
REASON               USER      TIMESTAMP           NODELIST
Mantenimiento progra root      2025-02-23T16:24:18 ds001
gres/gpu GRES core s slurm     2025-02-23T16:24:18 gpu[004-009]
"""
IP_LINK = """\
2: ens1f0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT group default qlen 1000
    link/ether 0c:42:a1:00:00:00 brd ff:ff:ff:ff:ff:ff
    RX:  bytes packets errors dropped  missed   mcast
     123456789 1234567    421       9       0      12
    RX errors:  length    crc   frame    fifo overrun
                     0     77       0       0       0
    TX:  bytes packets errors dropped carrier collsns
     123456789 1234567      3       0       0       0
"""
SYSFS = """\
/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data:8801220117
/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:912
/sys/class/infiniband/mlx5_1/ports/2/hw_counters/packet_seq_err:5
"""
SMI_CSV = (
    "timestamp, index, pci.bus_id, pcie.link.gen.current, pcie.link.width.current, "
    "ecc.errors.uncorrected.volatile.total, remapped_rows.pending\n"
    "2024/05/01 12:00:00.000, 0, 00000000:3B:00.0, 5, 16, 0, No\n"
    "2024/05/01 12:00:00.000, 1, 00000000:9B:00.0, 1, 8, 2, Yes\n"
)
DIAGNOSTIC = {
    "category": "Integration",
    "tests": [
        {"name": "PCIe", "results": [{"gpu_ids": "0", "status": "PASS"}, {"gpu_ids": "1,2", "status": "Fail"}]},
        None,
        {"name": "memory", "results": [{"entity_group": "GPU", "entity_id": 3, "status": "Fail"}]},
    ],
}
SOFTWARE = {"category": "Deployment", "tests": [{"name": "software", "results": [{"entity_id": 0, "status": "Fail"}]}]}
EVENTS = """\
LAST SEEN   TYPE      REASON                    OBJECT         MESSAGE
5m          Warning   Evicted                   pod/train-3    The node was low on resource: memory.
2m12s       Warning   SystemOOM                 node/gpu-7     System OOM encountered, victim process: python, pid: 571
2m          Normal    NodeHasSufficientMemory   node/gpu-7     Node gpu-7 status is now: NodeHasSufficientMemory
jobs   3m   Warning   NodeNotReady              node/gpu-8     Node is not ready
"""
DESCRIBED = """\
Name:             train-3
Node:             gpu-7/10.0.0.7
    Last State:     Terminated
      Reason:       Completed
      Finished:     Sun, 23 Feb 2025 10:00:00 +0100
    Last State:     Terminated
      Reason:       OOMKilled
      Started:      Sun, 23 Feb 2025 16:00:00 +0100
      Finished:     Sun, 23 Feb 2025 17:24:18 +0100
Name:               gpu-7
Conditions:
  Type             Status  LastHeartbeatTime                 LastTransitionTime                Reason
  MemoryPressure   True    Sun, 23 Feb 2025 16:25:00 +0000   Sun, 23 Feb 2025 16:24:18 +0000   KubeletHasInsufficient
  DiskPressure     False   Sun, 23 Feb 2025 16:25:00 +0000   Sun, 23 Feb 2025 09:00:00 +0000   KubeletHasNoDiskPressure
  Ready            False   Sun, 23 Feb 2025 16:25:00 +0000   Sun, 23 Feb 2025 16:24:18 +0000   KubeletNotReady
"""
VMSTAT = """\
procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu----- -----timestamp-----
 r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st                 UTC
 2  0      0 123456  12345 123456 5000 5000     1     2    3    4  1  0 99  0  0 2025-02-23 16:24:17
 9  0      0 123456  12345 123456 4000 8000     1     2    3    4 10 10 80  0  0 2025-02-23 16:24:18
 9  0      0 123456  12345 123456    0    0     1     2    3    4 90 10  0  0  0 2025-02-23 16:24:18
 9  0      0 123456  12345 123456    0    0     1     2    3    4 40 10 40  0 10 2025-02-23 16:24:18
"""
SAR = """\
Linux 5.15.0-91-generic (gpu-7) \t02/23/2025 \t_x86_64_\t(128 CPU)

04:24:16 PM     CPU     %user     %nice   %system   %iowait    %steal     %idle
04:24:17 PM     all     10.69      0.00      0.44      0.04      0.00     88.83
04:24:18 PM     all     99.10      0.00      0.90      0.00      0.00      0.00
04:24:18 PM       0     99.10      0.00      0.90      0.00      0.00      0.00
04:24:18 PM     all     80.00      0.00      0.90      0.00     10.00      9.10
04:24:19 PM  LINUX RESTART\t(128 CPU)
Average:        all     99.10      0.00      0.90      0.00      0.00      0.00

04:24:16 PM  pgpgin/s pgpgout/s   fault/s  majflt/s  pgfree/s pgscank/s pgscand/s pgsteal/s    %vmeff
04:24:18 PM  90000.00   1024.00  48123.00   4123.00  51234.00      0.00      0.00      0.00      0.00
"""
MPSTAT = """\
Linux 6.1.0 (gpu-8)     23.02.25        _x86_64_        (96 CPU)

16:24:17     CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle
16:24:18     all   99,99    0,00    0,01    0,00    0,00    0,00    0,00    0,00    0,00    0,00
16:24:19     all    0,99    0,00    0,01    0,00    0,00    0,00    0,00    0,00    0,00   99,00
"""
TURBOSTAT = (
    "Time_Of_Day_Seconds\tCore\tCPU\tAvg_MHz\tBusy%\tBzy_MHz\tTSC_MHz\tIRQ\tPkgTmp\n"
    "1740327858.250000\t-\t-\t961\t80.10\t1200\t2600\t1234\t99\n"
    "1740327858.250000\t0\t0\t961\t80.10\t1200\t2600\t12\t99\n1740327858.250000\t0\t48\t961\t80.10\t1200\t2600\n"
    "1740327859.250000\t-\t-\t2603\t80.10\t3250\t2600\t1234\t61\n"
)
CPU_STAT = "usage_usec 81230477\nnr_periods 9120\nnr_throttled 4410\nthrottled_usec 190232211\n"
WORKERS = (
    "[rank3]: /opt/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 16 worker processes in "
    "total. Our suggested max number of worker in current system is 8, which is smaller than what this DataLoader is "
    "going to create. Please be aware that excessive worker creation might get DataLoader running slow.\n"
)
TURBOSTAT_SUMMARY = (
    "Busy%\tBzy_MHz\tTSC_MHz\tPkgTmp\n0.07\t1200\t2600\t40\n80.1\t1200\t2600\t99\n80.1\t2598\t2600\t61\n"
)
DCGMI_DIAG = """\
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.3.5                                          |
|-----  Deployment  --------+------------------------------------------------|
| Persistence Mode          | Fail - GPU: 7                                  |
| software                  | Fail                                           |
|                           | GPU1: Fail                                     |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | Pass - GPUs: 1, 2, 3, 4, 5, 6, 7               |
|                           | Fail - GPU: 0                                  |
| Warning                   | GPU 0 Thermal violations totaling 13.3 second  |
|                           | s started at 9.7 seconds into the test for GP  |
| Diagnostic                | Fail - GPUs: 2, 13                             |
| memory                    | Fail                                           |
|                           | GPU0: Pass                                     |
|                           | GPU3: Fail                                     |
+-----  Stress  ------------+------------------------------------------------+
| Targeted Stress           | Skip - All                                     |
+---------------------------+------------------------------------------------+
"""
NETSTAT = "Tcp:\n    12 active connection openings\n    123456 segments sent out\n    881 segments retransmitted\n"
NSTAT = "#kernel\nIpInReceives   1234   0.0\nTcpRetransSegs                  881                0.0\n"
FAILED = (
    "[rank62]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.14 GiB. GPU 6 has a total capacity\n"
    "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\nCUDA error: quoted\n"
    "[rank4]: Memory access fault by GPU node-4 (Agent handle: 0x5) on address 0x7f. Reason: Unknown.\n"
)
WARNED = (
    "n7:185:188 [0] transport.cc:154 NCCL WARN Cuda failure 'invalid argument'\n"
    "n8:185:188 [0] NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n"
    "n9:185:188 [0] enqueue.cc:1 NCCL WARN Cuda failure 'driver shutting down'\n"
    "n9:185:188 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'\n"
    "[2026-07-23 04:16:01] n6:185:188 [0] init.cc:2 (commFree) NCCL WARN Cuda failure 'unspecified launch failure'\n"
)
FLUSHED = (
    "[2024-04-08 13:02:16,577] [WARNING] [stage3.py:2069:step] 27 pytorch allocator cache flushes since last step. "
    "this happens\n[rank3]:[titan] 2025-06-16 22:31:04,970 - root - WARNING - 37 CUDA memory allocation retries.\n"
)

CASES: list[tuple[str, str, str, tuple[str, ...], list[Any]]] = [
    (
        "training-log", MEGATRON, "throughput", ("step", "seconds", "samples_per_s", "tflops", "time_ns"),
        [(1, 2.048, 500.0, 40.4, 1748359387 * 10**9)],
    ),
    (
        "training-log", DEEPSPEED, "throughput", ("step", "samples_per_s"),
        [(10, 25.704280480541442), (20, 227.48090316379353)],
    ),
    (
        "training-log", VERL, "throughput", ("step", "seconds", "tokens_per_s"),
        [(2, 330.5, 524.25), (3, 310.0, None)],
    ),
    (
        "training-log", TITAN, "throughput", ("rank", "step", "tokens_per_s", "tflops", "time_ns"),
        [(0, 210, 5593.0, 323.92, 1750113064_970_000_000)],
    ),
    (
        "training-log", "Total img/sec on 8 GPU(s): 14281.2 +-25.0", "throughput", ("ranks", "samples_per_s"),
        [(8, 14281.2)],
    ),
    ("training-log", "total images/sec: 118874.19\n", "throughput", ("samples_per_s",), [118874.19]),
    (
        "training-log", "iter 10: loss 8.25, time 312.50ms, mfu 32.21%\niter 11: loss 8, time: 9ms, speed: 7\n",
        "throughput", ("step", "seconds"), [(10, 0.3125)],
    ),
    (
        "training-log",
        "step:0/1480 val_loss:7.7 train_time:0ms step_avg:nanms\n"
        "step:125/1480 val_loss:4.4 train_time:29736ms step_avg:250.00ms\nstep:9/20 train_loss:2 step_avg:43.5ms\n",
        "throughput", ("step", "seconds"), [(125, 0.25), (9, 0.0435)],
    ),
    (
        "training-log",  # of 8 micro batches to a step, one alone takes no step
        "Epoch 1 | iter 9 step 9 | loss train: 1.4, val: n/a | iter time: 250.00 ms (step)\n"
        "Epoch 1 | iter 16 step 2 | loss train: 1.4, val: n/a | iter time: 231.57 ms (step)\n",
        "throughput", ("step", "seconds"), [(9, 0.25)],
    ),
    (
        "training-log",
        "Epoch 0: : 100%|##| 9/9 [10:48<00:00, loss=0.01, global_step=8.00, train_step_timing in s=3.130]\n"
        "Training epoch 0, iteration 1/249 | lr: 3.9e-06 | global_step: 1 | train_step_timing in s: 2.5 | consumed: 16",
        "throughput", ("step", "seconds"), [(8, 3.13), (1, 2.5)],
    ),
    (
        "training-log",
        "2021-05-20 11:00:01 | INFO | train_inner | epoch 001:    100 / 5000 wps=32000, ups=2.21, wpb=16000, "
        "bsz=512, num_updates=100, lr=1.2e-05\n| epoch 001:  1 / 5 wps=0, ups=0, wpb=16000, bsz=512, num_updates=1\n",
        "throughput", ("step", "seconds", "samples_per_s"), [(100, 0.5, 1024.0)],
    ),
    (
        "training-log", "Train: 2 [  50/1251 (  4%)]  Loss: 6.9  Time: 0.412s, 2485.44/s  (0.598s, 1712.37/s)  LR: 1",
        "throughput", ("step", "seconds", "samples_per_s"), [(2552, 0.412, 2485.44)],
    ),
    (
        "training-log",
        "[08/22 12:12:12 d2.utils.events]:  eta: 1:02:01  iter: 19  loss: 3.2  time: 0.35  data_time: 0.01 lr: 1\n"
        "2023/05/05 10:10:10 - mmengine - INFO - Epoch(train)  [2][ 50/7330]  lr: 1e-03  time: 0.21  data_time: 0.01\n",
        "throughput", ("step", "seconds"), [(19, 0.35), (7380, 0.21)],
    ),
    (
        "training-log", ':::MLLOG {"key": "tracked_stats", "value": {"throughput": 30.5}, "metadata": {"step": 17}}\n'
        "\t Train throughput/device/samples_per_sec: 0.17\n\t Train throughput/samples_per_sec: 2.7\n",
        "throughput", ("step", "samples_per_s"), [(None, 30.5), (None, 2.7)],
    ),
    (
        "nccl-debug", NCCL_NET, "links", ("host", "nic", "link", "counter", "count"),
        [
            ("n7", "mlx5_6", None, "NCCL transfers with status 12 (no answer from the peer, retries exceeded)", 1),
            ("n8", None, None, "port error", 1), ("n9.x.org", None, None, "NCCL transfers with status 99", 1),
            ("n8", "mlx5_1", 2, "port error", 1), ("n8", "mlx5_3", 1, "ibv_modify_qp failed (Connection timed out)", 1),
            ("n8", None, None, "ibv_create_qp failed", 1), ("n5", None, None, "OFI requests failed (unknown error)", 1),
        ],
    ),
    (
        "dcgm-exporter",
        f'DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{{gpu="3",{LABELS}}} 7\n'
        f'DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{{gpu="3",{LABELS}}} 0\n',
        "links", ("host", "device", "nic", "counter", "count"),
        [("gpu-7", 3, None, "CRC flit", 7), ("gpu-7", 3, None, "Replay", 0)],
    ),
    (
        "dcgm-exporter", f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="3",{LABELS}}} 2\n', "gpu_errors",
        ("host", "device", "bus_id", "memory", "count"),
        [("gpu-7", 3, "0000:3b:00", "DCGM: double-bit errors", 2)],
    ),
    (
        "nvlink", "GPU 5: NVIDIA X\n\t Link 0: Replay Errors: 4\nGPU 6: NVIDIA X\n\t Link 0: Replay Errors: 1\n",
        "links", ("device", "link", "counter", "count"), [(5, 0, "Replay", 4), (6, 0, "Replay", 1)],
    ),
    (
        "amd-smi",
        "GPU  POWER   GPU_T   MEM_T   GFX_CLK   GFX%   MEM%   VRAM_USAGE\n"
        "  1  995 W   78 °C   62 °C   1403 MHz  100 %  N/A %  0.3/192.0 GB\n"
        "TIMESTAMP   GPU  POWER  GPU_TEMP  GFX_CLOCK\n1772323200    0  140 W     42 °C    132 MHz\n",
        "gpu_clocks", ("time_ns", "device", "sm_mhz", "power_w", "temp_c"),
        [(None, 1, 1403.0, 995.0, 78.0), (1772323200 * 10**9, 0, 132.0, 140.0, 42.0)],
    ),
    (
        "torchrun-failures", TORCHRUN, "exits", ("time_ns", "host", "rank", "exit_code", "is_first"),
        [(1741718000 * 10**9, "n3.cluster", 8, -9, True)],
    ),
    (
        "nvidia-smi-table", SMI, "gpu_clocks", ("device", "bus_id", "power_w", "power_cap_w", "temp_c"),
        [
            (0, "0000:1b:00", 640.0, 700.0, 64.0), (11, "0000:29:00", None, 300.0, 34.0),
            (3, "0000:9b:00", None, None, None),
        ],
    ),
    (
        "nvidia-smi-table", SMI, "gpu_errors", ("bus_id", "memory", "count"),
        [("0000:29:00", "uncorrected errors since the driver began", 2)],
    ),
    (
        "nvidia-smi-table",
        "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot the system\n"
        "Unable to determine the device handle for GPU 0000:2B:00.0: Not Found\n",
        "gpu_errors", ("bus_id", "code"), [("0000:1b:00", 79)],
    ),
    (
        "kernel-log", HOST, "incidents", ("time_ns", "host", "bus_id", "kind", "detail", "seconds"),
        [
            (1740327858 * 10**9, None, "0000:a1:00", "pcie", "corrected", None),
            (1740324258_500_000_000, "n8", "0000:a1:00", "pcie", "uncorrected", None),
            (1740324258_500_000_000, "n8", None, "soft_lockup", "python", 22.0),
            (67710258 * 10**9, "n7", None, "hung_task", "kworker/u8:2", 120.0),  # of no year
        ],
    ),
    (
        "slurm", KILLED, "exits", ("stated_by", "host", "tasks", "exit_code", "process", "manner"),
        [
            ("system", "n5", None, None, None, "lack of memory"), ("system", None, None, None, None, "lack of memory"),
            ("srun", "n5", "0", None, None, "Out Of Memory"),
            ("srun", "n6", "0-2,5", 134, None, "Exited with exit code 134"),
            ("slurmctld", "n9", None, None, None, "node failure"),
            ("slurmctld", "n10", None, None, None, "node failure"),
            ("system", "n7", None, None, "python", "lack of memory"),
        ],
    ),
    (
        "sacct", SACCT, "exits", ("time_ns", "host", "manner", "process"),
        [
            (1740327858 * 10**9, "n[1-4]", "NODE_FAIL", "job 7"),
            (1740327858 * 10**9, "n3", "lack of memory", None),
        ],
    ),
    (
        "scontrol-node", NODES, "incidents", ("time_ns", "host", "kind", "detail"),
        [
            (1740327858 * 10**9, "n2", "state", "out of service in Slurm (Kill task failed)"),
            (None, "n3", "state", None),
            (1740327858 * 10**9, "n5", "state", "out of service in Slurm (Not responding)"),
        ],
    ),
    (
        "slurm", SLURMCTLD, "incidents", ("time_ns", "host", "detail"),
        [
            (1740327858_123_000_000, host, detail)
            for host, detail in (
                ("n[3-4]", "not responding to Slurm"), ("n5", "out of service in Slurm (Xid 79)"),
                ("n6", "out of service in Slurm (gres/gpu count reported lower (7 < 8))"),
            )
        ],
    ),
    (
        "sinfo", SINFO, "incidents", ("time_ns", "host", "detail"),
        [
            (1740327858 * 10**9, "ds001", "out of service in Slurm (Mantenimiento progra)"),
            (1740327858 * 10**9, "gpu[004-009]", "out of service in Slurm (gres/gpu GRES core s)"),
        ],
    ),
    (
        "ip-link", IP_LINK, "links", ("nic", "counter", "count"),
        [("ens1f0", "RX errors", 421), ("ens1f0", "TX errors", 3)],
    ),
    (
        "port-counters", SYSFS, "links", ("nic", "link", "counter", "count"),
        [("mlx5_0", 1, "symbol_error", 912), ("mlx5_1", 2, "packet_seq_err", 5)],
    ),
    (
        "nvidia-smi", SMI_CSV, "links", ("device", "counter", "count"),
        [(0, "PCIe lanes", 16), (1, "PCIe lanes", 8), (0, "PCIe generation", 5), (1, "PCIe generation", 1)],
    ),
    (
        "nvidia-smi", SMI_CSV, "gpu_errors", ("time_ns", "device", "memory", "count"),
        [(None, 1, "errors of memory since boot", 2), (None, 1, "row remapping pending", 1)],
    ),
    (
        "dcgmi-diag", json.dumps({"DCGM Diagnostic": {"test_categories": [SOFTWARE, DIAGNOSTIC]}, "entity_groups": []}),
        "gpu_errors", ("device", "memory", "count"),
        [(gpu, f"DCGM's diagnostic: failures of {test}", 1) for gpu, test in ((1, "PCIe"), (2, "PCIe"), (3, "memory"))],
    ),
    (
        "amd-smi", AMD_METRIC, "links", ("device", "counter", "count"), [(3, "PCIe lanes", 8), (3, "PCIe replays", 77)],
    ),
    (
        "kernel-log", "5m   Warning   XidError   node/gpu-7   NVRM: Xid (PCI:0000:13:00): 94, pid=1\n", "gpu_errors",
        ("host", "bus_id", "code"), [("gpu-7", "0000:13:00", 94)],
    ),
    ("kubectl-events", EVENTS, "exits", ("host", "process", "manner"), [("gpu-7", "python", "lack of memory")]),
    (
        "kubectl-events", EVENTS, "incidents", ("host", "detail"),
        [("train-3", "Evicted in Kubernetes"), ("gpu-8", "NodeNotReady in Kubernetes")],
    ),
    (
        "kubectl-describe", DESCRIBED, "exits", ("time_ns", "host", "manner"),
        [(1740327858 * 10**9, "train-3", "lack of memory")],
    ),
    (
        "kubectl-describe", DESCRIBED, "incidents", ("time_ns", "host", "detail"),
        [(1740327858 * 10**9, "gpu-7", f"{what} in Kubernetes") for what in ("MemoryPressure", "NotReady")],
    ),
    (
        "vmstat", VMSTAT, "incidents", ("time_ns", "kind", "detail"),
        [
            (1740327858 * 10**9, "load", "memory was swapped"),
            (1740327858 * 10**9, "load", "all processors were busy"),
            (1740327858 * 10**9, "load", "other virtual machines had its processors"),
        ],
    ),
    (
        "sar", SAR, "incidents", ("time_ns", "host", "detail"),
        [
            (1740327858 * 10**9, "gpu-7", "all processors were busy"),
            (1740327858 * 10**9, "gpu-7", "other virtual machines had its processors"),
            (1740327858 * 10**9, "gpu-7", "programs waited for pages of theirs from disks"),
        ],
    ),
    (
        "sar", MPSTAT, "incidents", ("time_ns", "host", "detail"),
        [(1740327858 * 10**9, "gpu-8", "all processors were busy")],
    ),
    (
        "turbostat", TURBOSTAT, "incidents", ("time_ns", "kind"), [(1740327858_250_000_000, "cpu_clock")],
    ),
    (
        "turbostat", TURBOSTAT_SUMMARY, "incidents", ("time_ns", "kind"), [(None, "cpu_clock")],
    ),
    (
        "cpu-stat", CPU_STAT, "incidents", ("kind", "detail"),
        [("load", "the quota of processor time of its control group was used up")],
    ),
    (
        "training-log", WORKERS, "incidents", ("rank", "kind", "detail"),
        [(3, "load", "a DataLoader has 16 worker processes, PyTorch suggests 8 at most")],
    ),
    (
        "dcgmi-diag", DCGMI_DIAG, "gpu_errors", ("device", "memory", "count"),
        [
            (gpu, f"DCGM's diagnostic: failures of {test}", 1)
            for gpu, test in ((0, "GPU Memory"), (2, "Diagnostic"), (13, "Diagnostic"), (3, "memory"))
        ],
    ),
    *(
        ("tcp-counters", text, "links", ("nic", "counter", "count"), [("any adapter", "TCP segments sent again", 881)])
        for text in (NETSTAT, NSTAT)
    ),
    (
        "training-log", FAILED, "exits", ("rank", "manner"),
        [(62, "CUDA out of memory"), (3, "CUDA error: uncorrectable ECC error encountered"),
         (4, "Memory access fault by GPU node-4")],
    ),
    (
        "nccl-debug", WARNED, "exits", ("host", "manner"),
        [
            ("n7", "CUDA error: invalid argument"),
            ("n8", "CUDA error: an illegal memory access was encountered"),
            ("n6", "CUDA error: unspecified launch failure"),
        ],
    ),
    ("training-log", FLUSHED, "incidents", ("rank", "kind", "count"), [(0, "allocator", 27), (3, "allocator", 37)]),
    (
        "kernel-log", PORTS, "links", ("host", "nic", "link", "counter", "count"),
        [
            ("n3", "mlx5_5", 1, "link down events", 1), (None, "ens1f0np0", None, "link down events", 1),
            (None, "ens2f0", None, "link down events", 1), (None, "hsn0", None, "link down events", 1),
            (None, None, None, "adapter's health compromised", 1),
            ("n4", "ens4f0", None, "link down events in its bond", 1),
            (None, "eth1", None, "link down events in its bond", 1),
            (None, None, None, "adapter's High Temperature", 1),
            (None, "the adapter at 0000:5e:00.0", None, "PCIe", None),
        ],
    ),
    (
        "kernel-log", AMDGPU, "gpu_errors", ("host", "bus_id", "memory", "count"),
        [
            ("n4", "0000:c3:00", "amdgpu: resets of the GPU", 1),
            (None, "0000:68:00", "amdgpu: uncorrectable hardware errors", 1),
            (None, "0000:05:00", "amdgpu: uncorrectable hardware errors in umc", 3),
        ],
    ),
    (
        "kernel-log",
        "[8390.7] amdgpu 0000:c3:00.0: amdgpu: WARN: GPU is throttled, expect performance decrease. Temp Socket.\n",
        "gpu_clocks", ("bus_id", "reasons"), [("0000:c3:00", ["throttled"])],
    ),
    (
        "amd-smi", AMD_WATCH, "gpu_clocks", ("time_ns", "device", "sm_mhz", "power_w", "temp_c", "reasons"),
        [
            (1772323200_250_000_000, 0, 1404.0, 535.0, 40.0, []),
            (1772323200_000_000_000, 1, 1150.0, 990.0, 95.0, ["throttled"]),
        ],
    ),
    (
        "amd-smi", ROCM_CSV, "gpu_clocks", ("device", "sm_mhz", "power_w", "power_cap_w", "temp_c"),
        [(0, 1700.0, 481.0, 560.0, 61.0)],
    ),
    (
        "dcgm-exporter", DCGM, "gpu_clocks", ("time_ns", "host", "device", "bus_id", "sm_mhz", "reasons"),
        [(None, "gpu-7", 0, "0000:3b:00", 1410.0, None), (1712345678 * 10**9, None, 1, None, None, ["sw_power_cap"])],
    ),
    ("dcgm-exporter", DCGM, "gpu_errors", ("host", "bus_id", "code"), [("gpu-7", "0000:3b:00", 79)]),
    (
        "dcgm-exporter", XIDS, "gpu_errors", ("device", "code", "time_ns"),  # the first is from before
        [(0, 31, None), (0, 79, 1712345708 * 10**9), (1, 13, 1712345708 * 10**9), (0, 79, 1712345753 * 10**9)],
    ),
    (
        "dcgm-exporter", json.dumps(PROMETHEUS), "gpu_errors", ("host", "device", "code", "time_ns"),
        [("n7", 0, 79, 1712345693_250_000_000)],
    ),
    (
        "dcgmi-dmon", "#Entity   SMCLK  PVIOL  TVIOL\nID\nGPU 2     1965   0      0\nGPU 3     1290   N/A    99123\n",
        "links", ("device", "counter", "count"),
        [
            (2, "DCGM's counter of limits by power", 0), (2, "DCGM's counter of limits by heat", 0),
            (3, "DCGM's counter of limits by heat", 99123),
        ],
    ),
    (
        "dcgmi-dmon", "#Entity   XIDER\nID\nGPU 0     0\nGPU 1     N/A\nGPU 0     79\nGPU 0     79\nGPU 1     31\n",
        "gpu_errors", ("device", "code"), [(0, 79), (1, 31)],
    ),
    (
        "nvidia-smi", 'hostname, index, power.draw [W]\nn7, 3, "690,12 W"\n', "gpu_clocks",
        ("host", "device", "power_w"), [("n7", 3, 690.12)],
    ),
    (
        "nvlink", NVLINK, "links", ("device", "link", "state", "gb_per_s", "counter", "count"),
        [
            (0, 0, "active", 26.562, None, None), (0, 1, "inactive", None, None, None),
            (3, 0, None, None, "Replay", 0), (3, 0, None, None, "CRC", 891),
        ],
    ),
    (
        "ibstat", IBSTAT, "links", ("nic", "link", "state", "gb_per_s"),
        [("mlx5_0", 1, "Active", 50.0), ("mlx5_1", 1, "Down", 1.25)],
    ),
    (
        "ibstat", IBSTATUS, "links", ("nic", "link", "state", "gb_per_s"),
        [("mlx5_0", 1, "Active", 50.0), ("mlx5_1", 1, "Down", 5.0)],
    ),
    (
        "ibstat", IBV_DEVINFO, "links", ("nic", "link", "state", "gb_per_s"),
        [("mlx5_0", 1, "Active", None), ("mlx5_1", 1, "Down", None)],
    ),
    (
        "nvlink", NVLINK_OF_BLACKWELL, "links", ("device", "link", "counter", "count"),
        [(0, 0, "Link recovery failed", 1), (0, 0, "Effective", 4)],
    ),
    ("training-log", TITAN_IN_COLOURS, "throughput", ("step", "tokens_per_s", "tflops"), [(5, 6543.0, 380.12)]),
    ("training-log", IMAGENET, "throughput", ("step", "seconds"), [(10_020, 0.345)]),
    ("training-log", DLL, "throughput", ("step", "samples_per_s"), [(None, 20345.12)]),
    (
        "amd-smi", AMD_MONITOR, "gpu_clocks", ("device", "sm_mhz", "power_w", "temp_c"),
        [(0, 132.0, 139.0, 41.0)],
    ),
    (
        "amd-smi", AMD_METRIC, "gpu_clocks", ("device", "sm_mhz", "power_w", "temp_c", "reasons"),
        [(3, 1400.0, 750.0, 99.0, ["throttled"])],
    ),
    (
        "rocm-smi", ROCM_ALL, "gpu_clocks", ("device", "sm_mhz", "power_w"), [(1, None, 139.0), (1, 1700.0, None)],
    ),
    (
        "kernel-log", KERNEL_OF_HOST, "incidents", ("host", "kind", "detail"),
        [
            ("n8", "cpu_heat", None), ("n8", "file_system", "an NFS server"),
            ("n8", "file_system", "Lustre's scratch-OST0003"), ("n8", "file_system", "Lustre's scratch-OST0007"),
            ("n8", "file_system", "Lustre's scratch-MDT0001"), ("n8", "file_system", "an NFS server"),
            ("n8", "cpu_heat", None), ("n8", "soft_lockup", "kworker/9:1"), ("n8", "soft_lockup", None),
            ("n8", "soft_lockup", None),
            ("n8", "memory", "corrected"),
        ],
    ),
    (
        "port-counters", PERFQUERY, "links", ("link", "counter", "count"),
        [(1, "SymbolErrorCounter", 1542), (1, "PortXmitWait", 7)],
    ),
    (
        "port-counters", RDMA, "links", ("nic", "link", "counter", "count"),
        [
            ("mlx5_0", 1, "packet_seq_err", 7), ("mlx5_0", 1, "local_ack_timeout_err", 1822),
            ("mlx5_1", 1, "roce_adp_retrans", 0),
        ],
    ),
    (
        "port-counters", MLXLINK, "links", ("state", "counter", "count"),
        [("Active", None, None), (None, "Effective Physical Errors", 1822), (None, "Link Down Counter", 2)],
    ),
    (
        "port-counters", ETHTOOL, "links", ("counter", "count"),
        [("rx_crc_errors_phy", 31), ("rx_discards_phy", 4), ("rx_prio3_pause", 12)],
    ),
    (
        "port-counters", RDMA_OF_EFA, "links", ("nic", "link", "counter", "count"),
        [("rdmap0s6", 1, "retrans_pkts", 30104), ("rdmap0s6", 1, "retrans_timeout_events", 1832)],
    ),
    (
        "ibqueryerrors", IBQUERYERRORS, "links", ("host", "nic", "link", "counter", "count"),
        [
            ("hxa-su1-leaf-r1", "a switch", 33, "SymbolErrorCounter", 250),
            ("hxa-su1-leaf-r1", "a switch", 33, "LinkDownedCounter", 3),
            ("rd240", "mlx4_0", 1, "PortXmitWait", 4294967295),
        ],
    ),
    (
        "nvidia-smi-dmon", DMON, "gpu_clocks", ("time_ns", "device", "sm_mhz", "temp_c", "reasons"),
        [
            (1780048285 * 10**9, 0, 225.0, 27.0, []),
            (1780048285 * 10**9, 1, 1200.0, 88.0, ["sw_power_cap", "sw_thermal_slowdown"]),
            (1780048285 * 10**9, 2, 225.0, 28.0, None),
        ],
    ),
    (
        "nvidia-smi-dmon", DMON_CSV, "gpu_clocks", ("device", "sm_mhz", "power_w", "reasons"),
        [(0, 1151.0, 24.0, ["sw_thermal_slowdown"])],
    ),
    (
        "dcgm-exporter", VIOLATIONS, "links", ("host", "device", "counter", "count"),
        [("gpu-7", 0, "DCGM's counter of limits by power", 12000), ("gpu-7", 0, "PCIe replays", 0)],
    ),
    (
        "nvidia-smi-q", REPORT_OF_LIMITS, "links", ("device", "counter", "count"),
        [
            (0, "PCIe replays", 7), (0, "nvidia-smi's counter of SW Power Capping, us", 12234991553),
            (0, "nvidia-smi's counter of SW Thermal Slowdown, us", 0),
        ],
    ),
    (
        "nvidia-smi-q", FABRIC_HEALTH, "links", ("device", "state"),
        [(0, "active"), (1, "of degraded bandwidth"), (1, "with an unhealthy route")],
    ),
    (
        "nvidia-smi-q", FABRIC_HEALTH, "gpu_errors", ("time_ns", "device", "memory", "count"),
        [
            (None, 1, what, 1)
            for what in (
                "recovery actions (Reset)", "row remapping pending", "Channel Repair Pending", "TPC Repair Pending"
            )
        ],
    ),
    (
        "node-exporter", NODE_EXPORTER, "links", ("nic", "link", "state", "gb_per_s", "counter", "count"),
        [
            ("mlx5_0", 1, None, None, "port_xmit_wait", 1_234_500), ("mlx5_1", 1, "Down", None, None, None),
            ("mlx5_0", 1, None, 50.0, None, None),
        ],
    ),
    (
        "amd-exporter", AMD_EXPORTER, "gpu_clocks", ("host", "device", "sm_mhz", "temp_c"),
        [("n7", 3, 1533.0, None), ("n7", 3, None, 76.0)],
    ),
    ("amd-exporter", AMD_EXPORTER, "links", ("device", "nic", "counter", "count"), [(3, None, "PCIe replays", 12)]),
    (
        "dcgm-exporter", json.dumps(PROMETHEUS_OF_PORT), "links",
        ("time_ns", "host", "nic", "link", "counter", "count"),
        [(1712345678 * 10**9, "n7.cluster", "mlx5_0", 1, "link_downed", 3)],
    ),
    (
        "dcgm-exporter", 'DCGM_FI_DEV_SM_CLOCK{gpu="1",Hostname="n7",pod="{x}"} 1215\n', "gpu_clocks",
        ("host", "device", "sm_mhz"), [("n7", 1, 1215.0)],
    ),
    (
        "port-states", ETHTOOL_OF_PORT, "links", ("nic", "state", "gb_per_s"),
        [("ens1f0np0", "Active", 3.125), ("ens1f1np1", "Down", None)],
    ),
    (
        "port-states", "mlx5_0 port 1 ==> ib0 (Up)\nmlx5_1 port 1 ==> ib1 (Down)\n", "links", ("nic", "link", "state"),
        [("mlx5_0", 1, "Active"), ("mlx5_1", 1, "Down")],
    ),
    (
        "port-counters", "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0\n", "links",
        ("nic", "link", "state"), [("mlx5_0", 1, "Active")],
    ),
    (
        "kernel-log", KERNEL_OF_DEVICES, "links", ("host", "nic", "counter"),
        [
            (None, "ens8f0", "transmissions that timed out"), ("n8", "ens1f0", "transmissions that timed out"),
            (None, None, "adapter's Bus stuck"),
        ],
    ),
    (
        "kernel-log", KERNEL_OF_DEVICES, "incidents", ("kind", "detail"),
        [("file_system", "the disk nvme1"), ("file_system", "the disk sdb")],
    ),
    (
        "ipmi-sel", IPMI_SEL, "incidents", ("time_ns", "kind", "detail"),
        [
            (1740327858 * 10**9, "state", f"{what}, by its management controller")
            for what in (
                "Temperature CPU1 Temp: Upper Critical going high", "Power Supply PS1 Status: Failure detected"
            )
        ],
    ),
    ("kubectl-get", PODS, "exits", ("host", "manner"), [("train-3", "lack of memory")]),
    ("kubectl-get", PODS, "incidents", ("host", "detail"), [("train-5", "Evicted in Kubernetes")]),
    ("kubectl-get", NODES_OF_KUBERNETES, "incidents", ("host", "detail"), [("gpu-7", "NotReady in Kubernetes")]),
    (
        "nvlink", NVLINK_OF_BLACKWELL.replace("packets", "discards"), "links", ("device", "link", "counter", "count"),
        [(0, 0, "Tx discards", 12345), (0, 0, "Link recovery failed", 1), (0, 0, "Effective", 4)],
    ),
    (
        "fabric-manager", FABRIC, "gpu_errors", ("time_ns", "bus_id", "code"),
        [(1721721235 * 10**9, "0000:86:00", 20034)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("format_", "text", "relation", "columns", "expected"), CASES)
def test_lines_become_rows(
    format_: str, text: str, relation: str, columns: tuple[str, ...], expected: list[Any]
) -> None:
    log = parsed(text)
    assert sniff(text.encode()) == format_
    assert rows(log, relation, *columns) == expected
    if text.startswith("{"):
        return
    # after other lines, and behind the prefix of a launcher or of journald, the same is read
    for prefix in ("[1,0]<stdout>:", "Nov 27 10:00:00 n7 podman[12]: "):
        prefixed = "".join(f"{prefix}{line}\n" for line in ("loss 1.0", *text.splitlines()))
        assert len(rows(parsed(prefixed), relation, *columns)) == len(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROCM_JSON, [(0, 1700.0, 481.0, 61.0, None)]),
        (AMD_JSON, [(3, 1150.0, 990.0, 95.0, ["throttled"])]),
        (
            AMD_JSON[13:].strip().removesuffix("}"),
            [(3, 1150.0, 990.0, 95.0, ["throttled"])],
        ),  # as older amd-smi prints it
        (AMD_JSON[:200], []),
        ('{"gpu_data": 5, "hotspot": 1}', []),
    ],
)
def test_amd_json(text: str, expected: list[Any]) -> None:
    log = parsed(text)
    assert rows(log, "gpu_clocks", "device", "sm_mhz", "power_w", "temp_c", "reasons") == expected
    assert sniff(text.encode()) == "amd-smi"


@pytest.mark.parametrize(
    ("prefix", "host", "time_ns"),
    [
        ("2025-02-23T17:24:18+01:00 n7 podman[12]: ", "n7", 1740327858 * 10**9),
        ("2025-02-23T16:24:18.5Z stdout F ", None, 1740327858_500_000_000),
    ],
)
def test_rows_without_time_and_host_have_those_before_them(prefix: str, host: str | None, time_ns: int) -> None:
    text = "".join(f"{prefix}{line}\n" for line in DMON_CSV.splitlines())
    assert rows(parsed(text), "gpu_clocks", "host", "time_ns", "device") == [(host, time_ns, 0)]
    (failed,) = rows(parsed(prefix + FAILED.splitlines()[1]), "exits", "host", "time_ns", "rank")
    assert failed == (host, time_ns, 3)


def test_a_node_that_repeats_its_fields_is_read_in_linear_time() -> None:
    """Each of the states was tried with each of the reasons: 23 s per MB."""
    line = "NodeName=n1 " + "State=DOWN " * 180 + "Reason=aaa " * 440
    start = time.process_time()
    assert sniff(f"{line}\n".encode() * 100) is None
    assert time.process_time() - start < 5


def test_lines_of_two_ranks_are_not_mixed() -> None:
    first, second = SMI.splitlines()[3:5], SMI.splitlines()[6:8]
    mixed = f"0: {first[0]}\n1: {second[0]}\n0: {first[1]}\n1: {second[1]}\n"
    caps = rows(parsed(mixed), "gpu_clocks", "bus_id", "power_cap_w")
    assert caps == rows(parsed("\n".join((*first, *second))), "gpu_clocks", "bus_id", "power_cap_w")
    assert [bus_id for bus_id, _ in caps] == ["0000:1b:00", "0000:29:00"]
    assert None not in {cap for _, cap in caps}


@pytest.mark.parametrize("prefix", ["n{0}: ", "gpu-{0}.cluster: "])
def test_a_name_before_each_line_is_the_host(prefix: str) -> None:
    report = [line for line in IBSTAT.splitlines() if line]
    mixed = "".join(f"{prefix.format(host)}{line}\n" for line in report for host in (1, 2))
    found = rows(parsed(mixed), "links", "host", "nic", "state")
    hosts = [prefix.format(host).strip(" :") for host in (1, 2)]
    assert sorted(found) == sorted((host, nic, state) for nic, state in (("mlx5_0", "Active"), ("mlx5_1", "Down"))
                                   for host in hosts)  # fmt: skip
    failed = f"pdsh@login: {prefix.format(3)}ssh exited with exit code 255\n"
    assert rows(parsed(mixed + failed), "links", "host", "nic", "state") == found
    assert {host for host, *_ in rows(parsed(mixed + "loss 1.0\n"), "links", "host", "nic")} <= {None}
    ranks = "".join(f"rank{rank}: {line}\n" for line in report for rank in (1, 2))
    assert {host for host, *_ in rows(parsed(ranks), "links", "host", "nic")} <= {None}


def test_a_row_with_too_few_values_is_counted() -> None:
    assert [(one.format, one.count, one.lines) for one in parsed(ROCM_CSV).problems] == []
    cut = ROCM_CSV + "card1,44.0,60.0,(1700Mhz),1,481.0\n"
    assert [(one.format, one.count, one.lines) for one in parsed(cut).problems] == [("amd-smi", 1, (4,))]


def test_power_caps_and_bus_ids() -> None:
    concise = (
        "=== Concise Info ===\nGPU  Temp   AvgPwr  SCLK    MCLK     Fan  Perf    PwrCap  VRAM%  GPU%\n"
        "0    46.0c  92.0W   800Mhz  1600Mhz  0%   manual  560.0W    0%   0%\n"
        "1    52.0c  N/A     800Mhz  1600Mhz  0%   manual  0.0W      0%   0%\n"
    )
    assert rows(parsed(concise), "gpu_clocks", "device", "power_cap_w") == [(0, 560.0), (1, None)]
    csv = "index, pci.bus_id, power.draw [W], power.limit [W]\n0, 00000000:9B:00.0, 401.5 W, 400.00 W\n"
    columns = ("device", "bus_id", "power_w", "power_cap_w")
    assert rows(parsed(csv), "gpu_clocks", *columns) == [(0, "0000:9b:00", 401.5, 400.0)]
    report = (
        "==============NVSMI LOG==============\n\nTimestamp    : Wed May  1 12:00:00 2024\n\n"
        "GPU 00000000:3B:00.0\n    Product Name   : NVIDIA A100\n\n"
        "GPU 00000000:9B:00.0\n    Product Name   : NVIDIA A100\n"
    )
    assert rows(parsed(report), "gpu_clocks", "device", "bus_id") == [(0, "0000:3b:00"), (1, "0000:9b:00")]


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("Feb 23 16:24:18 n7 kernel: ", 67710258),  # of no year
        ("Feb 29 00:00:00 n7 kernel: [77.5] ", 68169600),
        ("Feb 23 2025 16:24:18.000000 n7 kernel: ", 1740327858),
        ("Mär  3 16:24:18 n7 kernel: ", None),
        ("Mon 2025-02-23 16:24:18 UTC n7 kernel: ", 1740327858),
        ("1740327858.000000 n7 kernel: ", 1740327858),
        ("[   77.512345] n7 kernel: ", None),
        ("2025-02-23T17:24:18+0100 n7 kernel: ", 1740327858),
    ],
)
def test_times_and_hosts_of_journals(stamp: str, seconds: int | None) -> None:
    log = parsed(f"{stamp}NVRM: Xid (PCI:0000:9b:00): 63, pid=1\n")
    assert rows(log, "gpu_errors", "host", "time_ns") == [("n7", None if seconds is None else seconds * 10**9)]


@needs_evidence
def test_published_link_speeds_and_switch_errors() -> None:
    path = EVIDENCE / "gpu_health/nvidia-smi.nvlink.status.a100"
    assert sniff(path) == "nvlink"
    links = rows(parse(path), "links", "device", "link", "gb_per_s")
    assert links == [(gpu, link, 25.0) for gpu in range(8) for link in range(12)]
    path = EVIDENCE / "gpu_health/fabricmanager.log"
    assert sniff(path) == "fabric-manager"
    assert len(rows(parse(path), "gpu_errors", "code")) == path.read_text().count("detected NVSwitch")
