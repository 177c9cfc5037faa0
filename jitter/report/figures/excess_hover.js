// Text of one row of a cell's tooltip; `format` says which. Bokeh escapes what is returned.
let [image, ranks, at] = ["image", "rank", "step"].map((name) => shown.data[name][0]);
const row = Math.round(special_vars.y), column = Math.floor((special_vars.x + 0.5) / wide);
const columns = image.shape[1], i = row * columns + column;
if (row < 0 || row >= rows || column < 0 || column >= columns) return "";
if (Number.isNaN(image[i]) && own != null && shown.tags[3] != "unknown") [ranks, at] = [own.data.rank[0], own.data.step[0]];
const time = (ns) => {
  const size = Math.abs(ns), sign = ns < 0 ? "−" : ns > 0 ? "+" : "";
  const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${sign}${parseFloat((size / scale).toFixed(3))} ${unit}`;
};
switch (format) {
  case "who": return `rank ${ranks[i]}` + (hosts[row] == null ? "" : ` on ${hosts[row]}`);
  case "when": return steps.data.step[at[i]] + (steps.data.embedded[at[i]] ? " (click to show)" : "");
  case "excess": {
    if (!Number.isNaN(image[i])) return time(image[i]);
    const off = own == null || shown.tags[3] == "unknown" ? NaN : own.data.image[0][i];
    return shown.tags[3] + (Number.isNaN(off) ? "" : `; own time above the peers' median ${time(off)}`);
  }
  default: return String(value);
}
