"use strict";
// The map of ranks by steps: read and choose a cell, or a step of the figures below it, by pointer or key.

// `model` finds a model of the figures, `time` formats ns; `choose(place, rank)` shows the step at this position of the
// run, with the rank of the cell, and returns whether its details are there.
const enableStepMap = ({ model, time, choose }) => {
  const steps = model("steps"), picked = model("picked"), shown = model("shown:excess"), cursor = model("cursor");
  const own = model("own:excess");
  const tell = (words) => (element("cell").textContent = words);
  const pick = () => {
    const [at, rank] = [picked.data.step[0], picked.data.rank[0]];
    if (at == null) return;
    setModel(picked, { data: { step: [], rank: [] } });  // so that the same cell can be chosen again
    const known = rank != null && !Number.isNaN(rank), named = known ? `rank ${rank}, ` : "";
    const found = choose(at, known ? rank : null);
    tell(`${named}${steps.data.step[at]}${found ? " is now in view." : ": no details in this page"}`);
  };
  if (picked) picked.properties.data.change.connect(pick);
  if (!shown) return;

  const off = (i) => {
    const words = shown.tags[3], ns = own && words != "unknown" ? own.data.image[0][i] : NaN;
    return words + (Number.isNaN(ns) ? "" : `; own time above the peers' median ${time(ns, true)}`);
  };
  const cell = { row: 0, column: -1 };
  const move = (rows, columns) => {
    const image = shown.data.image[0], [height, width] = image.shape;
    cell.row = Math.min(height - 1, Math.max(0, cell.row + rows));
    cell.column = Math.min(width - 1, Math.max(0, cell.column + columns));
    const wide = Math.ceil(steps.data.x.length / width), left = cell.column * wide - 0.5;
    setModel(cursor, { data: { left: [left], right: [left + wide], top: [cell.row - 0.5], bottom: [cell.row + 0.5] } });
    const i = cell.row * width + cell.column, excess = image[i];
    const words = Number.isNaN(excess) ? off(i) : time(excess, true);
    tell(`rank ${shown.data.rank[0][i]}, ${steps.data.step[shown.data.step[0][i]]}: ${words}`);
  };
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  element("figures-run").addEventListener("keydown", (event) => {
    if (event.key in ARROWS) move(...ARROWS[event.key]);
    else if (event.key == "Enter" && cell.column >= 0) {
      const i = cell.row * shown.data.image[0].shape[1] + cell.column;
      setModel(picked, { data: { step: [shown.data.step[0][i]], rank: [shown.data.rank[0][i]] } });
    } else return;
    event.preventDefault();
  });
};
