// Format a time in ns in one unit for the whole axis, chosen by the largest tick.
const largest = Math.max(...ticks.map(Math.abs));
const [scale, unit] = largest >= 1e9 ? [1e9, "s"] : largest >= 1e6 ? [1e6, "ms"] : largest >= 1e3 ? [1e3, "µs"] : [1, "ns"];
// enough digits to distinguish neighbouring ticks
const apart = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) / scale : 1;
const shown = parseFloat((tick / scale).toFixed(Math.min(9, Math.max(0, Math.ceil(-Math.log10(apart)) + 1))));
return shown == 0 ? "0" : `${shown} ${unit}`.replace("-", "−");
