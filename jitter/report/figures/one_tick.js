// Format a time in ns, each tick in its own unit: one unit does not fit a logarithmic axis.
const [scale, unit] = tick >= 1e9 ? [1e9, "s"] : tick >= 1e6 ? [1e6, "ms"] : tick >= 1e3 ? [1e3, "µs"] : [1, "ns"];
return `${parseFloat((tick / scale).toFixed(3))} ${unit}`;
