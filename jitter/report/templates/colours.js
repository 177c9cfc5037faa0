"use strict";
// Colours of the figures on a light and on a dark ground.

// each colour of the figures and its partner on a dark ground
const DARK = {
  "#1c2128": "#d5dae1", "#e6e8eb": "#30363d", "#fefefe": "#14181d", "#0072b2": "#56b4e9", "#d55e00": "#ff8a33",
  "#999999": "#8b949e", "#009e73": "#2fc69a", "#cc79a7": "#e79fc6", "#e69f00": "#f0c24b", "#8c5a00": "#c79a4a",
};
const LIGHT = Object.fromEntries(Object.entries(DARK).map(([light, dark]) => [dark, light]));
const partnerColour = (value, map) =>
  value != null && typeof value == "object" ? (value.value in map ? { value: map[value.value] } : null) : map[value];

const preference = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
const isDark = () => preference.matches && !printing.matches;

// The palette of the map of excess, whose lowest colour is that of the ground.
const paintMap = (figures, set) => {
  const colours = figures.get_model_by_name("excess:colours");
  if (colours) set(colours, { palette: colours.tags[isDark() ? 1 : 0] });
};
const paintModels = (figures, set) => {
  const map = isDark() ? DARK : LIGHT;
  for (const model of figures._all_models.values()) {
    for (const property of model) {
      if (!/color$/.test(property.attr)) continue;
      const colour = partnerColour(property.get_value(), map);
      if (colour != null) set(model, { [property.attr]: colour });
    }
  }
  paintMap(figures, set);
};
// Figures as JSON text, of a written page, with the colours of this browser.
const paintJson = (text) => {
  if (!isDark()) return text;
  return Object.entries(DARK).reduce((painted, [light, dark]) => painted.replaceAll(`"${light}"`, `"${dark}"`), text);
};
const followColours = (figures, set) => {
  for (const media of [preference, printing]) media.addEventListener("change", () => paintModels(figures, set));
};
