// One unit for the whole axis: the one that its largest tick asks for.
const largest = Math.max(...ticks.map(Math.abs));
const [scale, unit] = largest >= 1e9 ? [1e9, "s"] : largest >= 1e6 ? [1e6, "ms"] : largest >= 1e3 ? [1e3, "µs"] : [1, "ns"];
const shown = parseFloat((tick / scale).toPrecision(6));
return shown == 0 ? "0" : `${shown} ${unit}`.replace("-", "−");
