// Text of one row of the tooltip; `format` says which. Bokeh escapes what is returned.
const data = source.data, i = special_vars.index;
const [max_rank, min_rank, values] = source.tags;
const time = (ns) => {
  if (ns == null || Number.isNaN(ns)) return "unknown";
  const size = Math.abs(ns), sign = ns < 0 ? "−" : signed && !values && ns > 0 ? "+" : "";
  const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${sign}${parseFloat((size / scale).toFixed(3))} ${unit}`;
};
switch (format) {
  case "name": return names.data.short[data.code[i]];
  case "full": {
    const [full, short] = [names.data.full[data.code[i]], names.data.short[data.code[i]]];
    return full == short ? "" : full;
  }
  case "max": return max_rank == null ? "" : `${values ? "" : "max "}rank ${max_rank}: ${time(data.max[i])}`;
  case "min": return min_rank == null ? "" : `min rank ${min_rank}: ${time(data.min[i])}`;
  case "others":
    return Number.isNaN(data.low[i]) ? ""
      : `others: ${time(data.low[i])} (rank ${data.low_rank[i]}) to ${time(data.high[i])} (rank ${data.high_rank[i]})`;
  case "chosen":
    return Array.from(chosen.data.rank, (rank, n) => {
      const at = Array.from(chosen.data.xs[n]).indexOf(data.kernel_index[i]);
      return at < 0 ? "" : `rank ${rank}: ${time(chosen.data.ys[n][at])}`;
    }).filter((text) => text != "").join(", ");
  case "wait": {
    const at = met.data.kernel_index.indexOf(data.kernel_index[i]);
    return at < 0 || !(met.data.waited_ns[at] > 0) ? ""
      : `rank ${met.data.waiter[at]} waited ${time(met.data.waited_ns[at]).replace("+", "")} here for rank ${met.data.last[at]}`;
  }
  default: return String(value);
}
