"use strict";
// How the figures look: colours on a light and on a dark ground, and on a narrow screen.

// each colour of the figures and its partner on a dark ground
const DARK = {
  "#1c2128": "#d5dae1", "#e6e8eb": "#30363d", "#fefefe": "#14181d", "#0072b2": "#56b4e9", "#d55e00": "#ff8a33",
  "#999999": "#8b949e", "#009e73": "#2fc69a", "#cc79a7": "#e79fc6", "#e69f00": "#f0c24b", "#8c5a00": "#c79a4a",
  "#57606a": "#9aa4b0",
};
const LIGHT = Object.fromEntries(Object.entries(DARK).map(([light, dark]) => [dark, light]));
const partnerColour = (value, map) =>
  value != null && typeof value == "object" ? (value.value in map ? { value: map[value.value] } : null) : map[value];

const themed = (colour) => (isDark() ? DARK[colour] ?? colour : LIGHT[colour] ?? colour);

const preference = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
const isDark = () => preference.matches && !printing.matches;
const element = (id) => document.getElementById(id);
const setModel = (model, values) => model.setv(values, { sync: false });

// The palettes of the maps, whose lowest colour is that of the ground.
const paintMaps = (figures) => {
  for (const name of ["excess:colours", "map:colours"]) {
    const colours = figures.get_model_by_name(name);
    const isGrey = name == "excess:colours" && figures.get_model_by_name("shown:excess")?.tags[3];
    if (colours) setModel(colours, { palette: colours.tags[isGrey ? 2 : isDark() ? 1 : 0] });
  }
};
const paintModels = (figures) => {
  const map = isDark() ? DARK : LIGHT;
  for (const model of figures._all_models.values()) {
    for (const property of model) {
      if (!/color$/.test(property.attr)) continue;
      const colour = partnerColour(property.get_value(), map);
      if (colour != null) setModel(model, { [property.attr]: colour });
    }
  }
  paintMaps(figures);
};
// Figures as JSON text with the colours of this browser: a canvas keeps a rim of its first colours.
const paintJson = (text) => {
  if (!isDark()) return text;
  return Object.entries(DARK).reduce((painted, [light, dark]) => painted.replaceAll(`"${light}"`, `"${dark}"`), text);
};
// Narrow screens leave no room for text at marks, nor for the labels of groups.
const narrowJson = (node) => {
  if (node == null || typeof node != "object") return;
  const { name: kind, attributes } = node;
  if (node.type == "object" && attributes) {
    if (attributes.name == "flags") attributes.visible = false;
    if (kind == "GridPlot" && attributes.toolbar_location == "right") attributes.toolbar_location = "above";
    if (kind == "Legend" && attributes.orientation == "horizontal") attributes.ncols = 2;
    if (kind == "CategoricalAxis") Object.assign(attributes, { major_label_text_alpha: 0, group_label_orientation: "vertical" });
  }
  for (const value of Object.values(node)) narrowJson(value);
};

// BokehJS: a written page contains it, compressed; a live page has loaded it.
const loadLibrary = async () => {
  const compressed = element("library");
  if (compressed == null) return;
  const bytes = Uint8Array.from(atob(compressed.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
};

// Draw the figures of the page; returns their document.
const loadFigures = async () => {
  await loadLibrary();
  const { document: json, roots } = JSON.parse(paintJson(element("figures-data").textContent));
  if (innerWidth < 640) narrowJson(json);
  const item = { docid: "page", roots, root_ids: Object.keys(roots) };
  const [views] = await Bokeh.embed.embed_items({ page: json }, [item]);
  const figures = [...views][0].model.document;
  if (isDark()) paintMaps(figures);
  for (const media of [preference, printing]) media.addEventListener("change", () => paintModels(figures));
  // Bokeh draws the symbols of a legend once, and not if its glyphs have no data yet
  for (const model of figures._all_models.values()) if (model.type == "Legend") model.change.emit();
  return figures;
};
const failed = (error) => {
  element("failure").hidden = false;
  throw error;
};
