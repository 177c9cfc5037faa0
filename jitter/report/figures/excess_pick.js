// A click on a cell picks its rank and step.
const [image, ranks, at] = ["image", "rank", "step"].map((name) => shown.data[name][0]);
const row = Math.round(cb_obj.y), column = Math.floor((cb_obj.x + 0.5) / wide), columns = image.shape[1];
if (row < 0 || row >= rows || column < 0 || column >= columns) return;
const i = row * columns + column;
picked.data = { step: [at[i]], rank: [ranks[i]] };
