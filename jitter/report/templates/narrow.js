"use strict";
// Figures on a narrow screen: titles in several lines, legends in a column, no text at the marks, which would be cut
// off. A layout measures titles only when it is made, so all this comes before the first drawing.

const NARROW_PX = 640, TITLE_CHAR_PX = 7.6;
const isNarrow = () => innerWidth < NARROW_PX;
const wrapTitle = (text) => {
  if (!isNarrow()) return text;
  const most = Math.max(12, Math.floor((innerWidth - 200) / TITLE_CHAR_PX)), lines = [""];
  for (const word of text.split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + 1 + word.length > most) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.join("\n");
};

// The values of a model that a narrow screen changes, given its kind, name and present values.
const narrowValues = (kind, name, values) => {
  if (kind == "Title" && values.text) return { text: wrapTitle(values.text) };
  // half of the width is left for what a figure shows: no tools and no scale of colours beside it
  if (kind == "GridPlot") return { toolbar_location: "above" };
  if (kind == "Figure") return { min_border_right: 18 };
  if (kind == "CategoricalAxis") return { major_label_text_alpha: 0, group_label_orientation: "vertical" };
  if (kind == "ColorBar") return { visible: false };
  if (kind == "Legend" && values.orientation == "horizontal") return { ncols: 2 };
  if (kind == "BasicTicker" && values.min_interval == 1 && (values.desired_num_ticks ?? 6) == 6) return { desired_num_ticks: 3 };
  return name == "flags" ? { visible: false } : {};
};
// In figures as JSON, of a written page.
const narrowJson = (node) => {
  if (node == null || typeof node != "object") return;
  if (node.type == "object" && node.attributes) {
    Object.assign(node.attributes, narrowValues(node.name, node.attributes.name, node.attributes));
  }
  for (const value of Object.values(node)) narrowJson(value);
};
// In the models of a live page; `set` changes a model in this browser only.
const narrowModels = (figures, set) => {
  for (const model of figures._all_models.values()) {
    const { text, orientation, min_interval, desired_num_ticks } = model;
    const values = { text: typeof text == "string" ? text : null, orientation, min_interval, desired_num_ticks };
    set(model, narrowValues(model.type, model.name, values));
  }
};
