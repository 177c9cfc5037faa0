"use strict";
enableTables(document);
(async () => {
  const METRICS = ["ttke", "gap", "duration", "launch_latency"];
  const EXCESS = ["self_excess", "self_excess_cpu", "self_excess_gpu", "self_excess_communication"];
  const PARTS = [...EXCESS, ...METRICS, "collectives", "waits", "marks"];
  const element = (id) => document.getElementById(id);

  // each colour of the figures and its partner on a dark ground
  const DARK = {
    "#1c2128": "#d5dae1", "#e6e8eb": "#30363d", "#fefefe": "#14181d", "#0072b2": "#56b4e9", "#d55e00": "#ff8a33",
    "#999999": "#8b949e", "#009e73": "#2fc69a", "#cc79a7": "#e79fc6", "#e69f00": "#f0c24b",
  };
  const LIGHT = Object.fromEntries(Object.entries(DARK).map(([light, dark]) => [dark, light]));
  const partner = (value, map) =>
    value != null && typeof value == "object" ? (value.value in map ? { value: map[value.value] } : null) : map[value];
  // colours and zoom stay in the browser: they are not sent to the server of a live page
  const set = (model, values) => model.setv(values, { sync: false });
  const paint = (dark) => {
    const map = dark ? DARK : LIGHT;
    for (const model of figures._all_models.values()) {
      for (const property of model) {
        if (!/color$/.test(property.attr)) continue;
        const colour = partner(property.get_value(), map);
        if (colour != null) set(model, { [property.attr]: colour });
      }
    }
    warm(dark);
  };
  const preference = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const dark = () => preference.matches && !print.matches;

  // a written page contains its figures; a live page gets figures and text from the server
  let figures;
  const model = (name) => figures.get_model_by_name(name);
  const warm = (dark) => {
    const colours = model("excess:colours");
    if (colours) set(colours, { palette: colours.tags[dark ? 1 : 0] });
  };
  const live = element("session") != null;
  // the server still prepares the run: show how far it is, and what is known already; then load the page again
  const wait = () => {
    const bar = element("progress");
    const follow = () => {
      const { body, loading, fraction, ready } = model("told").data;
      if (ready[0]) return location.reload();
      if (body[0]) element("body").innerHTML = body[0];  // written by the server, texts from traces escaped
      bar.querySelector("progress").value = fraction[0];
      bar.querySelector("span").textContent = `${loading[0]}…`;
    };
    model("told").properties.data.change.connect(follow);
    follow();
    document.documentElement.dataset.loading = "true";
  };
  if (live) {
    const token = JSON.parse(element("session").textContent);
    const address = new URL("ws", location.href);
    address.protocol = location.protocol == "https:" ? "wss:" : "ws:";
    const session = await Bokeh.require("client/connection").pull_session(address.href, token);
    figures = session.document;
    document.title = figures.title();
    if (model("told").data.loading) return wait();
    element("body").innerHTML = model("told").data.body[0];  // written by the server, texts from traces escaped
    element("body").ariaBusy = false;
    element("progress").hidden = true;
    enableTables(element("body"));
    // paint before the first drawing: a canvas keeps a rim of its first colours
    if (dark()) paint(true);
    if (isNarrow()) narrowModels(figures, set);
    const places = figures.roots().map((root) => element(`figures-${root.name}`));
    await Bokeh.embed.add_document_standalone(figures, element("body"), places);
  } else {
    let text = element("figures-data").textContent;
    if (dark()) for (const [light, other] of Object.entries(DARK)) text = text.replaceAll(`"${light}"`, `"${other}"`);
    const { document: json, roots } = JSON.parse(text);
    if (isNarrow()) narrowJson(json);
    const item = { docid: "page", roots, root_ids: Object.keys(roots) };
    const [views] = await Bokeh.embed.embed_items({ page: json }, [item]);
    figures = [...views][0].model.document;
    if (dark()) warm(true);
  }
  for (const media of [preference, print]) media.addEventListener("change", () => paint(dark()));
  if (!model("kernels")) return void (document.documentElement.dataset.drawn = "true");  // no step can be shown

  const time = (ns, signed) => {
    if (ns == null || Number.isNaN(ns)) return "unknown";
    const size = Math.abs(ns), sign = ns < 0 ? "−" : signed && ns > 0 ? "+" : "";
    const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    return `${sign}${parseFloat((size / scale).toFixed(2))} ${unit}`;
  };

  // the step in view
  const select = element("step"), ranks = element("ranks");
  const first = live ? [] : PARTS.map((part) => ({ data: model(`shown:${part}`).data, tags: model(`shown:${part}`).tags }));
  const view = (n, part) => (n == 0 ? first[PARTS.indexOf(part)] : model(`view-${n}:${part}`));
  const kernels = model("kernels");
  let whole = [kernels.start, kernels.end], at = -1;  // position of the kernel chosen with the arrow keys
  let wantedSpan = null;  // of kernels, once the step in the address is in view
  // update titles, ranges and marks after the sources have changed
  const follow = () => {
    const [, , values, count] = model("shown:ttke").tags;
    for (const metric of METRICS) {
      const title = model(`title:${metric}`);
      if (title) set(title, { text: wrapTitle(title.tags[values ? 1 : 0]) });
    }
    const pad = Math.max(0.5, 0.01 * count);
    whole = [-pad, count - 1 + pad];
    const [start, end] = wantedSpan ?? whole;
    wantedSpan = null;
    set(kernels, { start, end, reset_start: whole[0], reset_end: whole[1] });
    if (model("shown:step")) set(model("shown:step"), { data: { x: [Number(select.value)] } });
    element("kernel").textContent = "";
    at = -1;
  };
  let asked = 0, replied = 0;
  const show = () => {
    element("absent").hidden = true;
    if (live) {
      asked += 1;
      element("status").textContent = "reading…";
      model("wanted").data = { number: [asked], place: [select.value], ranks: [ranks.value] };
      return;
    }
    const n = select.selectedIndex;
    for (const part of PARTS) {
      const { data, tags } = view(n, part);
      set(model(`shown:${part}`), { tags, data });
    }
    for (const section of document.querySelectorAll("[data-view]")) section.hidden = section.dataset.view != n;
    follow();
    remember();
  };
  const answered = () => {
    const { number, place, key, section, problem } = model("told").data;
    if (number[0] != asked) return;  // a newer request is under way
    replied = asked;
    element("status").textContent = problem[0];
    if (problem[0]) return;
    const changed = document.querySelector("section[data-view]").dataset.place != place[0];
    document.querySelector(".key[data-view]").outerHTML = key[0];
    document.querySelector("section[data-view]").outerHTML = section[0];
    enableTables(document.querySelector("section[data-view]"));
    if (changed || wantedSpan) follow();  // otherwise keep the zoom
    remember();
  };
  if (live) {
    const say = (words) => () => (element("status").textContent = words);
    figures.on_event("connection_lost", say("jitter serve does not respond: start it again, then reload this page."));
    figures.on_event("client_reconnected", say(""));
    model("told").properties.data.change.connect(answered);
    ranks.addEventListener("change", show);
  }
  const optionOf = (value, name) => [...select.options].find((option) => option.dataset[name] == value);
  const choose = (place) => {
    const found = [...select.options].find((option) => option.value == place);
    if (found) {
      select.value = place;
      show();
    }
    return found != null;
  };
  // a step without details here: say so where the reader looks for them, and how to see it
  const missing = (label, rank) => {
    const line = element("absent"), state = writeAddress({ step: label, ranks: rank == null ? null : String(rank) });
    const command = document.createElement("code");
    command.textContent = document.querySelector("[data-serve]").dataset.serve;
    line.replaceChildren(
      `This page does not hold the details of step ${label}. Run `, command,
      ` and open http://127.0.0.1:5006/${state} to see it. Below is step ${select.selectedOptions[0].dataset.step}.`,
    );
    line.hidden = false;
  };
  select.addEventListener("change", show);
  for (const button of document.querySelectorAll("button[data-show]")) {
    button.addEventListener("click", () => {
      choose(button.dataset.show);
      goTo("in-view");
    });
  }

  // the state in the address
  const part = element("excess-part"), layer = element("layer");
  let place = "", applying = false;  // where the reader went last
  const current = () => {
    const zoomed = Math.abs(kernels.start - whole[0]) > 0.5 || Math.abs(kernels.end - whole[1]) > 0.5;
    const chosen = (list) => (list && list.selectedIndex > 0 ? list.value : null);
    const state = {
      ranks: ranks?.value.trim(), part: chosen(part)?.replace("self_excess_", ""), layer: chosen(layer),
      x: zoomed ? `${Math.round(kernels.start)}-${Math.round(kernels.end)}` : null, at: place,
    };
    const first = select.selectedOptions[0]?.defaultSelected;
    if (!first || state.ranks || state.x) state.step = select.selectedOptions[0]?.dataset.step;
    return writeAddress(state);
  };
  const remember = () => {
    if (applying || asked != replied) return;
    const state = current();
    if (state != decodeURI(location.hash) && state != location.hash) history.pushState(null, "", state || location.pathname + location.search);
  };
  const goTo = (id) => {
    place = id;
    element(id)?.scrollIntoView();
    remember();
  };
  const showPart = () => {
    for (const name of EXCESS) set(model(`lines:${name}`), { visible: name == part.value });
  };
  const showLayer = () => {
    const { data, tags } = model(`layer:${layer.value}`);
    set(shown, { data, tags });
    set(model("title:excess"), { text: wrapTitle(tags[0]) });
    set(model("excess:colours"), { low: tags[1], high: tags[2] });
    if (model("own:cells")) set(model("own:cells"), { visible: tags[3] != "unknown" });
  };
  const follows = (list, value, update) => {
    if (!list) return;
    const before = list.value;
    list.value = value;
    if (list.selectedIndex < 0) list.selectedIndex = 0;
    if (list.value != before) update();
  };
  const apply = () => {
    const state = readAddress(location.hash);
    applying = true;
    follows(part, `self_excess_${state.part ?? ""}`.replace(/_$/, ""), showPart);
    follows(layer, state.layer ?? layer?.options[0].value, showLayer);
    const option = state.step == null ? [...select.options].find((one) => one.defaultSelected) : optionOf(state.step, "step");
    const lines = state.ranks ?? "", span = readSpan(state.x);
    if (option && (option.value != select.value || (live && lines != ranks.value.trim()))) {
      wantedSpan = span;
      if (live) ranks.value = lines;
      select.value = option.value;
      show();
    } else {
      const [start, end] = span ?? whole;
      set(kernels, { start, end });
    }
    if (!option) missing(state.step, state.ranks);
    else if (state.ranks && !live) missing(`${state.step ?? option.dataset.step} with lines of ranks`, state.ranks);
    place = state.at && element(state.at) ? state.at : "";
    const target = place || (state.step != null ? "in-view" : "");
    if (target) element(target).scrollIntoView();
    applying = false;
  };
  window.addEventListener("popstate", apply);
  let zooming = 0;
  for (const end of ["start", "end"]) kernels.properties[end].change.connect(() => {
    clearTimeout(zooming);
    zooming = setTimeout(remember, 400);
  });
  for (const link of document.querySelectorAll('nav a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      goTo(link.hash.slice(1));
    });
  }

  // choose a cell of the map or a step, by pointer or key
  const steps = model("steps"), picked = model("picked"), shown = model("shown:excess"), cursor = model("cursor");
  const tell = (words) => (element("cell").textContent = words);
  const pick = () => {
    const [at, rank] = [picked.data.step[0], picked.data.rank[0]];
    if (at == null) return;
    set(picked, { data: { step: [], rank: [] } });  // so that the same cell can be chosen again
    const who = rank == null || Number.isNaN(rank) ? "" : `rank ${rank}, `;
    if (live && who && !ranks.value.split(",").some((one) => one.trim() == rank)) {
      ranks.value = ranks.value.trim() ? `${ranks.value.trim()},${rank}` : rank;
    }
    const found = choose(at);
    if (!found) missing(steps.data.label[at], who ? rank : null);
    tell(found ? `${who}${steps.data.step[at]} is now in view.` : `${who}${steps.data.step[at]}: no details in this page`);
    goTo("in-view");
  };
  if (picked) picked.properties.data.change.connect(pick);

  const own = model("own:excess");
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
    set(cursor, { data: { left: [left], right: [left + wide], top: [cell.row - 0.5], bottom: [cell.row + 0.5] } });
    const i = cell.row * width + cell.column, excess = image[i];
    const words = Number.isNaN(excess) ? off(i) : time(excess, true);
    tell(`rank ${shown.data.rank[0][i]}, ${steps.data.step[shown.data.step[0][i]]}: ${words}`);
  };
  const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (shown) element("figures-run").addEventListener("keydown", (event) => {
    if (event.key in ARROWS) move(...ARROWS[event.key]);
    else if (event.key == "Enter" && cell.column >= 0) {
      const i = cell.row * shown.data.image[0].shape[1] + cell.column;
      set(picked, { data: { step: [shown.data.step[0][i]], rank: [shown.data.rank[0][i]] } });
    } else return;
    event.preventDefault();
  });
  const changed = (list, update) => list?.addEventListener("change", () => {
    update();
    remember();
  });
  changed(layer, showLayer);
  changed(part, showPart);
  element("keep-y").addEventListener("change", (event) => set(kernels, { tags: [event.target.checked] }));
  for (const button of document.querySelectorAll("button[data-csv]")) {
    const what = () => (button.dataset.csv == "kernels" ? `kernels:${part && button.previousElementSibling.value == "self_excess" ? part.value : button.previousElementSibling.value}` : button.dataset.csv);
    button.addEventListener("click", () => copyFrom(button, figureCsv(what(), model)));
  }

  // read kernels with the arrow keys
  const read = (by) => {
    const ttke = model("shown:ttke"), names = model("names").data;
    at = Math.min(ttke.data.kernel_index.length - 1, Math.max(0, at + by));
    const index = ttke.data.kernel_index[at], [most] = ttke.tags;
    const said = METRICS.filter((metric) => model(`title:${metric}`)).map((metric) => {
      const { data } = model(`shown:${metric}`), signed = metric != "launch_latency";
      return `${model(`title:${metric}`).text.replace(/ −.*|:.*/, "")} ${time(data.max[data.kernel_index.indexOf(index)], metric != "launch_latency")}`;
    });
    set(model("crosshair"), { location: index, visible: true });
    element("kernel").textContent =
      `kernel ${index} ${names.short[ttke.data.code[at]]}` + (most == null ? "" : `; rank ${most}: ${said.join(", ")}`);
  };
  const zoom = (factor) => {
    const middle = at < 0 ? (kernels.start + kernels.end) / 2 : model("shown:ttke").data.kernel_index[at];
    const half = ((kernels.end - kernels.start) * factor) / 2;
    set(kernels, { start: Math.max(whole[0], middle - half), end: Math.min(whole[1], middle + half) });
  };
  const KEYS = {
    ArrowLeft: () => read(-1), ArrowRight: () => read(1), "+": () => zoom(0.5), "-": () => zoom(2),
    0: () => set(kernels, { start: whole[0], end: whole[1] }),
  };
  element("figures-profile").addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    KEYS[event.key]();
    event.preventDefault();
  });

  apply();
  document.documentElement.dataset.drawn = "true";
})().catch((error) => {
  document.getElementById("failure").hidden = false;
  throw error;
});
