"""Reasons for a lower GPU clock: NVML's bits, and the names that nvidia-smi prints.

`clocks_event_reasons.*`, to driver 535 `clocks_throttle_reasons.*`; bits in NVML's nvml.h.
"""

from typing import Final

BITS: Final = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def reasons_of_mask(mask: int) -> list[str]:
    """Return the names of the set bits; a bit without a known name is `bit_0x200`."""
    names = [name for bit, name in BITS.items() if mask & bit]
    unknown = mask & ~sum(BITS)
    return [*names, *(f"bit_{1 << at:#x}" for at in range(unknown.bit_length()) if unknown >> at & 1)]


def reason_of_name(name: str) -> str | None:
    """Return the reason that a printed name means ("SW Power Cap", "sw_power_cap"), or None."""
    words = name.strip().lower().replace(" ", "_")
    words = {"idle": "gpu_idle", "hw_power_brake": "hw_power_brake_slowdown"}.get(words, words)
    return words if words in BITS.values() else None
