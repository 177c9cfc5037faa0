// Fit y to all lines in view, 0 included, and never finer than the scale of the view: noise stays flat.
const [from, to] = [kernels.start, kernels.end], least = view.data.scale_ns[0];
let [low, high] = [0, 0];
const widen = (xs, ys) => {
  for (let n = 0; n < xs.length; n++) {
    if (xs[n] < from || xs[n] > to || Number.isNaN(ys[n])) continue;
    low = Math.min(low, ys[n]);
    high = Math.max(high, ys[n]);
  }
};
for (const line of lines) if (source.data[line]) widen(source.data.kernel_index, source.data[line]);
if (chosen) Array.from(chosen.data.xs).forEach((xs, n) => widen(xs, chosen.data.ys[n]));
const missing = Math.max(0, least - (high - low)), pad = 0.06 * Math.max(high - low, least);
const [start, end] = floor ? [0, high + missing + pad] : [low - missing / 2 - pad, high + missing / 2 + pad];
if (y_range.start != start || y_range.end != end) y_range.setv({ start, end, reset_start: start, reset_end: end }, { sync: false });
