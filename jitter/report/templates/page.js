"use strict";
(async () => {
  const item = (id) => JSON.parse(document.getElementById(id).textContent);
  const PARTS = ["duration", "gap", "ttke", "launch_latency", "collectives", "marks"];
  const select = document.getElementById("step");
  if (!select) return;

  const mount = async (name) => (await Bokeh.embed.embed_item(item(`item-${name}`), `figures-${name}`)).roots[0].model.document;
  const profile = await mount("profile");
  const run = await mount("run");

  // light and dark: every model keeps the colour it was made with, and shows its partner on a dark ground
  const DARK = {
    "#1c2128": "#d5dae1", "#e6e8eb": "#30363d", "#ffffff": "#14181d",
    "#0072b2": "#56b4e9", "#d55e00": "#ff8a33", "#999999": "#8b949e", "#009e73": "#2fc69a", "#cc79a7": "#e79fc6", "#a0457a": "#e79fc6",
  };
  const made = new Map();
  const paint = (dark) => {
    for (const document of [profile, run]) {
      for (const model of document._all_models.values()) {
        if (!made.has(model)) {
          const colours = {};
          for (const property of model) {
            if (!/color$/.test(property.attr)) continue;
            const value = property.get_value();
            const colour = value != null && typeof value == "object" ? value.value : value;
            if (colour in DARK) colours[property.attr] = [value, colour];
          }
          made.set(model, colours);
        }
        for (const [attr, [value, colour]] of Object.entries(made.get(model))) {
          const other = value === colour ? DARK[colour] : { value: DARK[colour] };
          model.setv({ [attr]: dark ? other : value });
        }
      }
    }
  };
  const preference = matchMedia("(prefers-color-scheme: dark)");
  preference.addEventListener("change", () => paint(preference.matches));
  const print = matchMedia("print");
  print.addEventListener("change", () => paint(preference.matches && !print.matches));

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
    const end = Math.max(Number(option.dataset.kernels) - 0.5, 0.5);
    model("kernels").setv({ start: -0.5, end, reset_start: -0.5, reset_end: end });
    model("shown:step", run).data = { x: [Number(option.dataset.place)] };
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
  paint(preference.matches);
  document.documentElement.dataset.drawn = "true";
})().catch((error) => {
  document.getElementById("failure").hidden = false;
  throw error;
});
