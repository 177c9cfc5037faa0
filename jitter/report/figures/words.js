// Times in ns and sizes in bytes in words; begins every script of a tooltip or an axis.
const time = (ns, signed) => {
  if (ns == null || Number.isNaN(ns)) return "unknown";
  const size = Math.abs(ns), sign = ns < 0 ? "−" : signed && ns > 0 ? "+" : "";
  const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${sign}${parseFloat((size / scale).toFixed(3))} ${unit}`;
};
const bytes = (size) => {
  const power = Math.max(0, Math.min(4, Math.floor(Math.log2(size) / 10 + 1e-9)));
  return `${parseFloat((size / 1024 ** power).toFixed(1))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
};
