"use strict";
// The page of a report: the step in view, the lists and buttons around the figures, and the state in the address.

enableTables(document);
(async () => {
  const METRICS = ["ttke", "gap", "duration", "launch_latency"];
  const EXCESS = ["self_excess", "self_excess_cpu", "self_excess_gpu", "self_excess_communication"];
  const PARTS = [...EXCESS, ...METRICS, "collectives", "waits", "marks"];

  const live = isLive(), figures = await loadFigures();
  if (figures == null) return;
  const drawn = () => (document.documentElement.dataset.drawn = "true");
  const model = (name) => figures.get_model_by_name(name);
  if (!model("kernels")) return void drawn();  // no step can be shown

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
  let whole = [kernels.start, kernels.end];
  let wantedSpan = null;  // of kernels, once the step in the address is in view
  const forgetKernel = enableKernelKeys({ model, time, whole: () => whole, metrics: METRICS });
  // update titles, ranges and marks after the sources have changed
  const follow = () => {
    const [, , values, count] = model("shown:ttke").tags;
    for (const metric of METRICS) {
      const title = model(`title:${metric}`);
      if (title) setModel(title, { text: wrapTitle(title.tags[values ? 1 : 0]) });
    }
    const pad = Math.max(0.5, 0.01 * count);
    whole = [-pad, count - 1 + pad];
    const [start, end] = wantedSpan ?? whole;
    wantedSpan = null;
    setModel(kernels, { start, end, reset_start: whole[0], reset_end: whole[1] });
    if (model("shown:step")) setModel(model("shown:step"), { data: { x: [Number(select.value)] } });
    forgetKernel();
    drawLegends(figures);
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
      setModel(model(`shown:${part}`), { tags, data });
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
  enableStepMap({
    model, time,
    choose: (at, rank) => {
      if (live && rank != null && !ranks.value.split(",").some((one) => one.trim() == rank)) {
        ranks.value = ranks.value.trim() ? `${ranks.value.trim()},${rank}` : rank;
      }
      const found = choose(at);
      if (!found) missing(model("steps").data.label[at], rank);
      goTo("in-view");
      return found;
    },
  });

  // the part of the excess, and the layer of the map
  const part = element("excess-part"), layer = element("layer");
  const showPart = () => {
    for (const name of EXCESS) setModel(model(`lines:${name}`), { visible: name == part.value });
  };
  const showLayer = () => {
    const { data, tags } = model(`layer:${layer.value}`);
    setModel(model("shown:excess"), { data, tags });
    setModel(model("title:excess"), { text: wrapTitle(tags[0]) });
    setModel(model("excess:colours"), { low: tags[1], high: tags[2] });
    if (model("own:cells")) setModel(model("own:cells"), { visible: tags[3] != "unknown" });
  };
  const changed = (list, update) => list?.addEventListener("change", () => {
    update();
    remember();
  });
  changed(layer, showLayer);
  changed(part, showPart);
  element("keep-y").addEventListener("change", (event) => setModel(kernels, { tags: [event.target.checked] }));
  for (const button of document.querySelectorAll("button[data-csv]")) {
    const what = () => {
      if (button.dataset.csv != "kernels") return button.dataset.csv;
      const list = button.previousElementSibling;
      return `kernels:${part && list.value == "self_excess" ? part.value : list.value}`;
    };
    button.addEventListener("click", () => copyFrom(button, figureCsv(what(), model)));
  }

  // the state in the address
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
      setModel(kernels, { start, end });
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

  apply();
  drawn();
})().catch((error) => {
  document.getElementById("failure").hidden = false;
  throw error;
});
