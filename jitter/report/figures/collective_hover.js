// Text of one row of a collective's tooltip; `format` says which. Bokeh escapes what is returned.
const data = source.data, i = special_vars.index;
const time = (ns) => {
  if (Number.isNaN(ns)) return "unknown";
  const [scale, unit] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${parseFloat((ns / scale).toFixed(3))} ${unit}`;
};
const size = (bytes) => {
  const power = Math.max(0, Math.min(4, Math.floor(Math.log2(bytes) / 10)));
  return `${parseFloat((bytes / 1024 ** power).toFixed(1))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
};
switch (format) {
  case "what": return `kernel ${data.kernel_index[i]}: ${data.operation[i]}`;
  case "size": return `${size(data.bytes[i])}, ${parseFloat((data.bytes[i] / data.most_ns[i]).toPrecision(3))} GB/s`;
  case "took": return data.least_ns[i] == data.most_ns[i] ? `took ${time(data.most_ns[i])} from the last arrival`
    : `took ${time(data.least_ns[i])} (fastest group) to ${time(data.most_ns[i])} (slowest) from the last arrival`;
  case "usual": return `median of the run: ${time(data.usual_ns[i])}`;
  case "waited": return data.waited_ns[i] > 0
    ? `rank ${data.waiter[i]} waited ${time(data.waited_ns[i])} for rank ${data.last[i]}` : "no rank waited";
  default: return String(value);
}
