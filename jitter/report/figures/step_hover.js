// Text of one row of a step's tooltip; `format` says which. Bokeh escapes what is returned.
const data = source.data, i = Math.round(value);
const time = (ns, signed) => {
  if (ns == null || Number.isNaN(ns)) return "unknown";
  const size = Math.abs(ns), sign = ns < 0 ? "−" : signed && ns > 0 ? "+" : "";
  const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${sign}${parseFloat((size / scale).toFixed(3))} ${unit}`;
};
switch (format) {
  case "step": return data.step[i] + (data.embedded[i] ? " (click to show)" : "");
  case "time": return `step time: ${time(data.time[i])}`;
  case "loss": {
    const share = (100 * data.loss[i]) / data.time[i];
    return `loss: ${time(data.loss[i])}` + (Number.isFinite(share) ? ` (${share.toFixed(2)}%)` : "");
  }
  case "max": return Number.isNaN(data.max_rank[i]) ? "no max rank" : `max rank ${data.max_rank[i]}`;
  case "min": return Number.isNaN(data.min_rank[i]) ? "no min rank" : `min rank ${data.min_rank[i]}`;
  case "parts": return Number.isNaN(data.start[i]) ? ""
    : `loss: late start ${time(data.start[i], true)}, CPU ${time(data.cpu[i], true)}, ` +
      (data.after[i] ? `after last launch ${time(data.after[i], true)}, ` : "") +
      `GPU ${time(data.gpu[i], true)}, communication ${time(data.transfer[i], true)}, rest ${time(data.rest[i], true)}`;
  case "cause": return data.cause[i] == "none" ? "nothing stands out above the noise" : `cause: ${data.cause[i]}`;
  case "began": return Number.isNaN(data.index[i]) ? "" : `diverges at kernel ${data.index[i]} ${data.kernel[i]}`;
  default: return String(value);
}
