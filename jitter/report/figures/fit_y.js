// Fit y to the 1st to 99th percentile of each visible line in view, mark what lies beyond, label the chosen ranks.
// `fit_range.py` computes the first range by the same rule.
if (cb_obj === kernels && kernels.tags[0]) return;  // the reader keeps the range while zooming
const fit = () => {
  y_range.waiting = false;
  const at = drawn.findIndex((renderer) => renderer.visible);
  if (at < 0) return;
  const data = sources[at].data, [max_rank, min_rank] = sources[at].tags, own = chosen[at].data;
  const x = data.kernel_index, [from, to] = [kernels.start, kernels.end];
  const lines = [
    { xs: x, ys: data.max, rank: () => max_rank }, { xs: x, ys: data.min, rank: () => min_rank },
    { xs: x, ys: data.low, rank: (n) => data.low_rank[n] }, { xs: x, ys: data.high, rank: (n) => data.high_rank[n] },
    ...Array.from(own.rank, (rank, n) => ({ xs: own.xs[n], ys: own.ys[n], rank: () => rank, color: own.color[n] })),
  ];
  const kept = zero ? [0] : [], seen = [];
  for (const line of lines) {
    const known = [];
    for (let n = 0; n < line.xs.length; n++) {
      if (line.xs[n] < from || line.xs[n] > to || Number.isNaN(line.ys[n])) continue;
      known.push(line.ys[n]);
      seen.push([line.xs[n], line.ys[n], line, n]);
    }
    known.sort((a, b) => a - b);
    const cut = Math.floor(known.length / 100);
    if (known.length) kept.push(known[cut], known[known.length - 1 - cut]);
  }
  const [least, most] = kept.length ? [Math.min(...kept), Math.max(...kept)] : [0, 1];
  const local = { sync: false }, size = most - least;
  const [start, end] = [least - Math.max(below * size, 0.5), most + Math.max(above * size, 0.5)];
  if (y_range.start != start || y_range.end != end) y_range.setv({ start, end, reset_start: start, reset_end: end }, local);
  const show = (source, data) => {  // a source that does not change costs no drawing
    if (data.x.length || source.data.x.length) source.setv({ data }, local);
  };

  // at most one mark in each of 100 columns of an edge: that of the farthest value
  const time = (ns) => {
    const size = Math.abs(ns), sign = ns < 0 ? "−" : zero && ns > 0 ? "+" : "";
    const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    return `${sign}${parseFloat((size / scale).toPrecision(4))} ${unit}`;
  };
  const farthest = new Map();
  for (const one of seen) {
    const beyond = one[1] > end ? one[1] - end : one[1] < start ? start - one[1] : 0;
    if (beyond == 0) continue;
    const key = Math.floor((100 * (one[0] - from)) / (to - from)) * Math.sign(one[1] - start);
    if (!(farthest.get(key)?.[4] >= beyond)) farthest.set(key, [...one, beyond]);
  }
  const marks = [...farthest.values()].sort((a, b) => b[4] - a[4]);
  const left = (one) => one[0] > (from + to) / 2, inside = 0.02 * (end - start);
  show(edges, {
    x: marks.map((one) => one[0]),
    y: marks.map((one) => (one[1] > end ? end - inside : start + inside)),
    angle: marks.map((one) => (one[1] > end ? 0 : Math.PI)),
    text: marks.map((one) => `beyond the range: kernel ${one[0]}, rank ${one[2].rank(one[3])}: ${time(one[1])}`),
    label: marks.map((one, n) => (n == marks.findIndex((other) => other[1] > end == one[1] > end) ? time(one[1]) : "")),
    height: marks.map((one) => (one[1] > end ? 6 : -6)),  // px: a label at the edge would be cut in half
    align: marks.map((one) => (left(one) ? "right" : "left")), offset: marks.map((one) => (left(one) ? -8 : 8)),
  });

  // labels at the right end of what is in view, at least one line of text apart
  const apart = (14 * (end - start)) / Math.max(plot.inner_height || 200, 50);
  const ended = lines.filter((line) => line.color).map((line) => {
    let last = -1;
    for (let n = 0; n < line.xs.length; n++) if (line.xs[n] <= to && !Number.isNaN(line.ys[n])) last = n;
    return last < 0 ? null : { x: Math.min(to, line.xs[last]), y: Math.min(end - apart / 2, Math.max(start + apart / 2, line.ys[last])), line };
  }).filter((one) => one != null).sort((a, b) => a.y - b.y);
  for (let n = 1; n < ended.length; n++) ended[n].y = Math.max(ended[n].y, ended[n - 1].y + apart);
  for (let n = ended.length - 1, top = end - apart / 2; n >= 0; n--, top -= apart) ended[n].y = Math.min(ended[n].y, top);
  show(labels, {
    x: ended.map((one) => one.x), y: ended.map((one) => one.y), text: ended.map((one) => `rank ${one.line.rank()}`),
    color: ended.map((one) => one.line.color),
  });
};
if (!y_range.waiting) {  // several sources change together: fit once
  y_range.waiting = true;
  setTimeout(fit, 0);
}
