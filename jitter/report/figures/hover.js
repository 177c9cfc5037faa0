// Text of one row of a tooltip, for each kind of figure; `format` says which row. Bokeh escapes what is returned.
// A figure takes the lines before the first kind and the lines of one kind, so that a page holds each once.
const known = (value, text) => (value == null || Number.isNaN(value) ? "" : text);
// kind: step
const data = source.data, i = Math.round(value), share = (100 * data.loss[i]) / data.time[i];
const words = {
  step: data.step[i] + (data.embedded[i] ? " (click to show)" : ""),
  time: `step time: ${time(data.time[i])}`,
  loss: `loss: ${time(data.loss[i])}` + (Number.isFinite(share) ? ` (${share.toFixed(2)}%)` : ""),
  max: known(data.max_rank[i], `max rank ${data.max_rank[i]}`),
  min: known(data.min_rank[i], `min rank ${data.min_rank[i]}`),
  parts: known(data.start[i], `loss: late start ${time(data.start[i], true)}, CPU ${time(data.cpu[i], true)}, ` +
    (data.after[i] ? `after last launch ${time(data.after[i], true)}, ` : "") +
    `GPU ${time(data.gpu[i], true)}, communication ${time(data.transfer[i], true)}, rest ${time(data.rest[i], true)}`),
  cause: data.cause[i] == "none" ? "" : `cause: ${data.cause[i]}`,
  began: known(data.index[i], `diverges at kernel ${data.index[i]} ${data.kernel[i]}`),
};
return words[format] ?? "";
// kind: cell
let [image, ranks, at] = ["image", "rank", "step"].map((name) => shown.data[name][0]);
const row = Math.round(special_vars.y), column = Math.floor((special_vars.x + 0.5) / wide);
const columns = image.shape[1], i = row * columns + column, grey = own != null && shown.tags[2] != "unknown";
if (row < 0 || row >= rows || column < 0 || column >= columns) return "";
if (Number.isNaN(image[i]) && grey) [ranks, at] = [own.data.rank[0], own.data.step[0]];
const off = grey ? own.data.image[0][i] : NaN;
const words = {
  who: `rank ${ranks[i]}` + (hosts[row] == null ? "" : ` on ${hosts[row]}`),
  when: steps.data.step[at[i]] + (steps.data.embedded[at[i]] ? " (click to show)" : ""),
  excess: Number.isNaN(image[i]) ? shown.tags[2] + known(off, `; own time above the peers' median ${time(off, true)}`)
    : time(image[i], true),
};
return words[format] ?? "";
// kind: kernel
const data = source.data, i = special_vars.index, { max_rank, min_rank, values } = view.data, index = data.kernel_index[i];
const [full, short] = [names.data.full[data.code[i]], names.data.short[data.code[i]]], sign = signed && !values[0];
const met = collectives.data, at = met.kernel_index.indexOf(index);
const lines = Array.from(chosen.data.rank, (rank, n) => {
  const of = Array.from(chosen.data.xs[n]).indexOf(index);
  return of < 0 ? "" : `rank ${rank}: ${time(chosen.data.ys[n][of], sign)}`;
});
const words = {
  name: short,
  full: full == short ? "" : full,
  max: known(max_rank[0], `${values[0] ? "" : "max "}rank ${max_rank[0]}: ${time(data.max[i], sign)}`),
  min: known(min_rank[0], `min rank ${min_rank[0]}: ${time(data.min[i], sign)}`),
  others: known(data.low[i], `others: ${time(data.low[i], sign)} (rank ${data.low_rank[i]}) to ` +
    `${time(data.high[i], sign)} (rank ${data.high_rank[i]})`),
  chosen: lines.filter((text) => text != "").join(", "),
  wait: at < 0 || !(met.waited_ns[at] > 0) ? ""
    : `rank ${met.waiter[at]} waited ${time(met.waited_ns[at])} here for rank ${met.last[at]}`,
};
return words[format] ?? "";
// kind: run
const data = source.data, i = special_vars.index, [first, last] = [data.left[i] + 0.5, data.right[i] - 0.5];
const words = {
  who: `rank ${data.rank[i]} is ${data.row[i] ? "furthest ahead" : "furthest behind"}`,
  where: first == last ? `kernel ${first}` : `kernels ${first} to ${last}`,
  clear: data.clear[i] ? "" : "all ranks within 1% of the step",
};
return words[format] ?? "";
// kind: collective
const data = source.data, i = special_vars.index, [least, most] = [data.least_ns[i], data.most_ns[i]];
const words = {
  what: `kernel ${data.kernel_index[i]}: ${data.operation[i]}`,
  size: known(data.bytes[i], `${bytes(data.bytes[i])}, ${parseFloat((data.bytes[i] / most).toPrecision(3))} GB/s`),
  took: least == most ? `took ${time(most)} from the last arrival`
    : `took ${time(least)} (fastest group) to ${time(most)} (slowest) from the last arrival`,
  expected: known(data.expected_ns[i], `by the benchmark: ${time(data.expected_ns[i])}`),
  usual: `median of the run: ${time(data.usual_ns[i])}`,
  waited: data.waited_ns[i] > 0 ? `rank ${data.waiter[i]} waited ${time(data.waited_ns[i])} for rank ${data.last[i]}`
    : "no rank waited",
};
return words[format] ?? "";
// kind: map
const image = source.data.image[0], [height, width] = image.shape, [rows, columns] = [cells.data.rows[0], cells.data.columns[0]];
const row = Math.round(special_vars.y), column = Math.floor((special_vars.x + 0.5) / (source.data.dw[0] / width));
if (row < 0 || row >= height || column < 0 || column >= width) return "";
const words = { who: `rank ${rows[row]}`, where: `kernel ${columns[column]}`, added: time(image[row * width + column], true) };
return words[format] ?? "";
// kind: strip
const data = source.data, i = special_vars.index;
const words = { who: `rank ${data.rank[i]}, step ${data.step[i]}`, took: time(data.took[i]) };
return words[format] ?? "";
