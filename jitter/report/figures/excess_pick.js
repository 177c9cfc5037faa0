// A click on a cell picks its rank and step.
const row = Math.round(cb_obj.y), column = Math.floor((cb_obj.x + 0.5) / wide);
const columns = shown.data.image[0].shape[1], i = row * columns + column;
if (row < 0 || row >= rows || column < 0 || column >= columns) return;
const grey = own != null && shown.tags[3] != "unknown" && Number.isNaN(shown.data.image[0][i]);
const { rank, step } = (grey ? own : shown).data;
picked.data = { step: [step[0][i]], rank: [rank[0][i]] };
