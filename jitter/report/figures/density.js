// Mark the collectives in view one by one, or as bins of density if they are too many.
const at = collectives.data.kernel_index, [start, end] = [kernels.start, kernels.end];
const seen = Array.from(at).filter((x) => x >= start && x <= end);
const local = { sync: false };  // the view of one browser: nothing for the server of a live page
if (seen.length <= most) {
  if (ticks.data.x.length != seen.length || ticks.data.x[0] != seen[0]) ticks.setv({ data: { x: seen } }, local);
  if (density.data.left.length) density.setv({ data: { left: [], right: [], alpha: [] } }, local);
} else {
  const wide = (end - start) / bins, counts = new Array(bins).fill(0);
  for (const x of seen) counts[Math.min(bins - 1, Math.floor((x - start) / wide))] += 1;
  const fullest = Math.max(...counts);
  if (ticks.data.x.length) ticks.setv({ data: { x: [] } }, local);
  density.setv({ data: {
    left: counts.map((_, n) => start + n * wide), right: counts.map((_, n) => start + (n + 1) * wide),
    alpha: counts.map((count) => count / fullest),
  } }, local);
}
