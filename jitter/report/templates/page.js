"use strict";
(async () => {
  const PARTS = ["duration", "gap", "ttke", "launch_latency", "collectives", "marks"];
  const select = document.getElementById("step");
  if (!select) return;

  // each colour of the figures and its partner on a dark ground
  const DARK = {
    "#1c2128": "#d5dae1", "#e6e8eb": "#30363d", "#fefefe": "#14181d", "#0072b2": "#56b4e9", "#d55e00": "#ff8a33",
    "#999999": "#8b949e", "#009e73": "#2fc69a", "#cc79a7": "#e79fc6", "#a0457a": "#eab0d0",
  };
  const LIGHT = Object.fromEntries(Object.entries(DARK).map(([light, dark]) => [dark, light]));
  const partner = (value, map) =>
    value != null && typeof value == "object" ? (value.value in map ? { value: map[value.value] } : null) : map[value];
  const paint = (dark) => {
    const map = dark ? DARK : LIGHT;
    for (const document of [profile, run].filter(Boolean)) {
      for (const model of document._all_models.values()) {
        for (const property of model) {
          if (!/color$/.test(property.attr)) continue;
          const colour = partner(property.get_value(), map);
          if (colour != null) model.setv({ [property.attr]: colour });
        }
      }
    }
  };
  const preference = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const dark = () => preference.matches && !print.matches;

  const mount = async (name) => {
    let text = document.getElementById(`item-${name}`).textContent;
    // drawn in the right colours at once: a canvas keeps a rim of the first ones
    if (dark()) for (const [light, other] of Object.entries(DARK)) text = text.replaceAll(`"${light}"`, `"${other}"`);
    return (await Bokeh.embed.embed_item(JSON.parse(text), `figures-${name}`)).roots[0].model.document;
  };
  const profile = await mount("profile");
  const run = document.getElementById("item-run") ? await mount("run") : null;
  for (const media of [preference, print]) media.addEventListener("change", () => paint(dark()));

  // the step in view
  const model = (name, document = profile) => document.get_model_by_name(name);
  const first = PARTS.map((part) => ({ data: model(`shown:${part}`).data, tags: model(`shown:${part}`).tags }));
  const view = (n, part) => (n == 0 ? first[PARTS.indexOf(part)] : model(`view-${n}:${part}`));
  const show = (n) => {
    const option = select.options[n];
    for (const part of PARTS) {
      const { data, tags } = view(n, part);
      model(`shown:${part}`).setv({ tags, data });
    }
    for (const metric of PARTS.slice(0, 4)) {
      const title = model(`title:${metric}`);
      title.text = title.tags[option.dataset.values == "true" ? 1 : 0];
    }
    const kernels = Number(option.dataset.kernels), pad = Math.max(0.5, 0.01 * kernels);
    const [start, end] = [-pad, kernels - 1 + pad];
    model("kernels").setv({ start, end, reset_start: start, reset_end: end });
    if (run) model("shown:step", run).data = { x: [Number(option.dataset.place)] };
    for (const section of document.querySelectorAll("[data-view]")) section.hidden = section.dataset.view != n;
  };
  select.addEventListener("change", () => show(select.selectedIndex));
  for (const button of document.querySelectorAll("button[data-show]")) {
    button.addEventListener("click", () => {
      select.selectedIndex = Number(button.dataset.show);
      show(select.selectedIndex);
      document.getElementById("in-view").scrollIntoView();
    });
  }
  if (select.selectedIndex > 0) show(select.selectedIndex);  // a browser that reloads keeps what was chosen
  document.documentElement.dataset.drawn = "true";
})().catch((error) => {
  document.getElementById("failure").hidden = false;
  throw error;
});
