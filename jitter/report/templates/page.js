// The page of a report: the step in view, the map, the kernels, and the state in the address.

(async () => {
  enableTables(document);
  const page = JSON.parse(element("page-data").textContent);
  const figures = await loadFigures();
  const model = (name) => figures.get_model_by_name(name);
  const { ndarray } = Bokeh.require("core/util/ndarray");
  const TYPES = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int8: Int8Array };
  const decode = (value) => {
    if (Array.isArray(value)) return value.map(decode);
    if (value == null || typeof value != "object") return value;
    if (value.b64 == null) return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, decode(one)]));
    const { buffer } = Uint8Array.from(atob(value.b64), (letter) => letter.charCodeAt(0));
    return value.shape.length > 1 ? ndarray(buffer, value) : new TYPES[value.dtype](buffer);
  };

  // steps that were read, by place
  const select = element("step"), ranks = element("ranks"), kernels = model("kernels"), status = element("status");
  const steps = new Map(page.steps.map((step) => [String(step.place), step]));
  const labelOf = (place) => model("steps").data.label[Number(place)];
  let whole = [kernels.start, kernels.end], shown = select.value, asked = 0;
  const fetched = async (address) => {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(await answer.text());
    const found = await answer.json();
    if (found.problem) throw new Error(found.problem);
    return found;
  };
  const read = async (place) => {
    const lines = ranks?.value.trim() ?? "", key = lines ? `${place}?${lines}` : place;
    if (!steps.has(key) && page.live) steps.set(key, await fetched(`step/${place}?ranks=${encodeURIComponent(lines)}`));
    return steps.get(key);
  };
  // Show a step, with the kernels of `span`; resolves to whether the page has it.
  const show = async (place, span) => {
    const number = ++asked;
    let step = null;
    try {
      if (page.live) status.textContent = "reading…";
      step = await read(place);
      status.textContent = "";
    } catch (error) {
      status.textContent = error instanceof TypeError
        ? "jitter serve does not respond: start it again, then reload this page." : error.message.trim();
      return false;
    }
    if (number != asked) return true;  // a newer request is under way
    element("absent").hidden = step != null;
    if (step == null) return false;
    const changed = place != shown;
    shown = select.value = place;
    for (const [part, columns] of Object.entries(decode(step.columns))) {
      if (part == "runs") columns.color = columns.color.map(themed);
      if (model(`shown:${part}`)) setModel(model(`shown:${part}`), { data: columns });
    }
    for (const [name, columns] of Object.entries(decode(step.chosen))) setModel(model(`chosen:${name}`), { data: columns });
    if (step.ceiling != null && model("map:colours")) {
      const low = step.columns.view.scale_ns[0] / 50;
      setModel(model("map:colours"), { low, high: step.ceiling });
      setModel(model("map-ranks"), { start: step.columns.cells.rows[0].length - 0.5, end: -0.5 });
    }
    const { values, is_calm, kernels: count } = step.columns.view;
    for (const line of figures._all_models.values()) {
      if (line.name != "max-line") continue;
      setModel(line, { line_color: themed(line.tags[is_calm[0] ? 1 : 0]) });
    }
    for (const name of ["self_excess", "ttke", "gap", "duration", "launch_latency"]) {
      const title = model(`title:${name}`);
      if (title) setModel(title, { text: title.tags[values[0] ? 1 : 0] });
    }
    if (model("shown:step")) setModel(model("shown:step"), { data: { x: [Number(place)] } });
    element("key").innerHTML = step.key;  // written by jitter, texts from traces escaped
    element("step-text").innerHTML = step.text;
    showTables();
    if (changed || span) {
      const pad = Math.max(0.5, 0.01 * count[0]);
      whole = [-pad, count[0] - 1 + pad];
      const [start, end] = span ?? whole;
      setModel(kernels, { start, end });
      forgetKernel();
      search();
    }
    remember();
    return true;
  };
  // the tables of the step in view; a live page reads them once they are looked at
  let tabled = page.steps.length ? String(page.steps[0].place) : null;
  const showTables = async () => {
    const place = shown, step = steps.get(place);
    if (tabled == place || step == null || !(step.tables != null || element("step-details").open)) return;
    step.tables ??= (await fetched(`tables/${place}`)).tables;
    if (place != shown) return;
    tabled = place;
    element("step-tables").innerHTML = step.tables;
    enableTables(element("step-tables"));
  };
  element("step-details").addEventListener("toggle", showTables);
  // a step without details here: say so, and how to see it
  const missing = (label, rank, what = `the details of step ${label}`) => {
    const line = element("absent"), command = document.createElement("code");
    command.textContent = line.dataset.serve;
    line.replaceChildren(
      `This page does not hold ${what}. Run `, command,
      ` and open http://127.0.0.1:5006/${writeAddress({ step: label, ranks: rank })} to see it. Below is step ${labelOf(shown)}.`,
    );
    line.hidden = false;
  };
  const go = async (place, rank, span) => {
    if (!(await show(String(place), span)) && !page.live) {
      select.value = shown;
      missing(labelOf(place), rank);
    }
  };
  const walk = (by) => {
    const at = select.selectedIndex + by;
    if (at >= 0 && at < select.options.length) go(select.options[at].value);
  };
  select.addEventListener("change", () => go(select.value));
  ranks?.addEventListener("change", () => show(shown));
  for (const link of document.querySelectorAll("#steps tr[data-place] a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      go(link.closest("tr").dataset.place);  // keeps the lines of ranks
    });
  }
  element("previous").addEventListener("click", () => walk(-1));
  element("next").addEventListener("click", () => walk(1));

  // the map of ranks by steps, by pointer or key
  const picked = model("picked"), map = model("shown:excess"), own = model("own:excess"), stepSource = model("steps");
  const tell = (words) => (element("cell").textContent = words);
  picked.properties.data.change.connect(() => {
    const [at, rank] = [picked.data.step[0], picked.data.rank[0]];
    if (at == null) return;
    setModel(picked, { data: { step: [], rank: [] } });  // so that the same cell can be chosen again
    const line = rank == null || Number.isNaN(rank) ? null : String(rank);
    if (ranks && line != null && !ranks.value.split(",").some((one) => one.trim() == line)) {
      ranks.value = ranks.value.trim() ? `${ranks.value.trim()},${line}` : line;
    }
    go(at, line);
  });
  const cell = { row: 0, column: -1 };
  const move = (rows, columns) => {
    const image = map.data.image[0], [height, width] = image.shape;
    cell.row = Math.min(height - 1, Math.max(0, cell.row + rows));
    cell.column = Math.min(width - 1, Math.max(0, cell.column + columns));
    const wide = Math.ceil(stepSource.data.x.length / width), left = cell.column * wide - 0.5;
    setModel(model("cursor"), { data: { left: [left], right: [left + wide], top: [cell.row - 0.5], bottom: [cell.row + 0.5] } });
    const i = cell.row * width + cell.column, off = own && map.tags[2] != "unknown" ? own.data.image[0][i] : NaN;
    const words = Number.isNaN(image[i])
      ? map.tags[2] + (Number.isNaN(off) ? "" : `; own time above the peers' median ${time(off, true)}`) : time(image[i], true);
    tell(`rank ${map.data.rank[0][i]}, ${stepSource.data.step[map.data.step[0][i]]}: ${words}`);
  };
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  element("figures-run")?.addEventListener("keydown", (event) => {
    if (!map) return;
    if (event.key in MOVES) move(...MOVES[event.key]);
    else if (event.key == "Enter" && cell.column >= 0) {
      const i = cell.row * map.data.image[0].shape[1] + cell.column;
      setModel(picked, { data: { step: [map.data.step[0][i]], rank: [map.data.rank[0][i]] } });
    } else return;
    event.preventDefault();
  });
  const layer = element("layer");
  const showLayer = () => {
    const { data, tags } = model(`layer:${layer.value}`);
    setModel(map, { data, tags });
    setModel(model("excess:colours"), { low: tags[0], high: tags[1] });
    paintMaps(figures);
    if (model("own:cells")) setModel(model("own:cells"), { visible: tags[2] != "unknown" });
  };
  layer?.addEventListener("change", () => {
    showLayer();
    remember();
  });

  // kernels by keyboard, by name, and one of them over the steps
  const series = () => model("shown:ttke").data;
  let at = -1;  // position of the kernel that was read last
  const forgetKernel = () => {
    element("kernel").textContent = "";
    at = -1;
  };
  const readKernel = (by) => {
    const { kernel_index, code } = series();
    at = Math.min(kernel_index.length - 1, Math.max(0, at + by));
    const index = kernel_index[at], most = model("shown:view").data.max_rank[0];
    const parts = ["self_excess", "gap", "duration", "launch_latency"].filter((name) => model(`title:${name}`)).map((name) => {
      const { data } = model(`shown:${name}`);
      return `${name.replaceAll("_", " ")} ${time(data.max[data.kernel_index.indexOf(index)], name != "launch_latency")}`;
    });
    setModel(model("crosshair"), { location: index, visible: true });
    const name = model("shown:names").data.short[code[at]];
    element("kernel").textContent = `kernel ${index} ${name}` + (most == null ? "" : `; rank ${most}: ${parts.join(", ")}`);
  };
  const zoom = (factor) => {
    const middle = at < 0 ? (kernels.start + kernels.end) / 2 : series().kernel_index[at];
    const half = ((kernels.end - kernels.start) * factor) / 2;
    setModel(kernels, { start: Math.max(whole[0], middle - half), end: Math.min(whole[1], middle + half) });
  };
  const showAll = () => setModel(kernels, { start: whole[0], end: whole[1] });
  const KEYS = { ArrowLeft: () => readKernel(-1), ArrowRight: () => readKernel(1), "+": () => zoom(0.5), "-": () => zoom(2), 0: showAll };
  element("figures-kernels").addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    KEYS[event.key]();
    event.preventDefault();
  });
  for (const [id, action] of [["zoom-in", () => zoom(0.5)], ["zoom-out", () => zoom(2)], ["all", showAll]]) {
    element(id).addEventListener("click", action);
  }
  const finder = element("search");
  let match = -1;
  const search = () => {
    const { kernel_index, code } = series(), { full } = model("shown:names").data, word = finder.value.trim().toLowerCase();
    const fits = (index, n) => (/^\d+$/.test(word) ? index == Number(word) : full[code[n]].toLowerCase().includes(word));
    const x = word == "" ? [] : Array.from(kernel_index).filter(fits);
    setModel(model("matches"), { data: { x } });
    return x;
  };
  finder.addEventListener("input", () => {
    match = -1;
    const found = search();
    element("kernel").textContent = finder.value.trim() ? `${found.length} of ${series().kernel_index.length} kernels match` : "";
  });
  finder.addEventListener("keydown", (event) => {
    const found = event.key == "Enter" ? search() : [];
    if (!found.length) return;
    match = (match + 1) % found.length;
    at = -1;
    readKernel(1 + Array.from(series().kernel_index).indexOf(found[match]));
    if (kernels.start > found[match] || kernels.end < found[match]) zoom(1);
  });
  const durations = { ...page.durations, duration_ns: decode(page.durations.duration_ns) };
  const kernelOf = new Map(durations.kernels.map((index, n) => [index, [durations, n]]));
  const showKernel = async (index) => {
    const words = element("strip-words");
    if (!words) return;
    if (!kernelOf.has(index) && page.live) {
      const found = await fetched(`kernel/${shown}/${index}`);
      kernelOf.set(index, [{ ...found, duration_ns: decode(found.duration_ns) }, 0]);
    }
    if (!kernelOf.has(index)) {
      words.textContent = `This page does not hold the durations of kernel ${index}; jitter serve shows every kernel.`;
      return;
    }
    const [{ names, ranks: of, steps: labels, duration_ns: took }, n] = kernelOf.get(index);
    const data = { x: [], took: [], rank: [], step: [] };
    of.forEach((rank, r) => labels.forEach((label, s) => {
      const ns = took[(n * of.length + r) * labels.length + s];
      if (Number.isNaN(ns)) return;
      data.x.push(r + 0.7 * ((s + 0.5) / labels.length - 0.5));
      data.took.push(ns);
      data.rank.push(rank);
      data.step.push(label);
    }));
    setModel(model("strip"), { data });
    words.textContent = `kernel ${index}: ${names[n]}`;
    chosenKernel = index;
    remember();
  };
  let chosenKernel = null;
  const showFirstKernel = () => {
    const [index] = model("shown:marks").data.kernel_index;
    showKernel(kernelOf.has(index) ? index : durations.kernels[0]);
  };
  kernels.properties.tags.change.connect(() => {
    if (!kernels.tags.length) return;
    const [index] = kernels.tags;
    setModel(kernels, { tags: [] });
    element("kernels").open = true;
    showKernel(index).then(() => element("strip-words").scrollIntoView({ block: "nearest" }));
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || /^(input|select|textarea)$/i.test(event.target.tagName)) return;
    if (event.key == "n" || event.key == "p") walk(event.key == "n" ? 1 : -1);
    else if (event.key == "/") finder.focus();
    else if (event.key == "r" && ranks) ranks.focus();
    else return;
    event.preventDefault();
  });

  // figures as CSV
  const FIGURES = {
    kernels: () => {
      const name = element("series").value, { data } = model(`shown:${name}`), lines = model(`chosen:${name}`).data;
      const { full } = model("shown:names").data, { max_rank, min_rank } = model("shown:view").data;
      const columns = { kernel_index: data.kernel_index, kernel_name: Array.from(data.code, (code) => full[code]) };
      if (max_rank[0] != null) columns[`rank_${max_rank[0]}_ns`] = data.max;
      if (min_rank[0] != null) columns[`rank_${min_rank[0]}_ns`] = data.min;
      Object.assign(columns, { others_lowest_ns: data.low, lowest_rank: data.low_rank, others_highest_ns: data.high, highest_rank: data.high_rank });
      Array.from(lines.rank).forEach((rank, n) => {
        const values = new Map(Array.from(lines.xs[n], (x, i) => [x, lines.ys[n][i]]));
        columns[`chosen_rank_${rank}_ns`] = Array.from(data.kernel_index, (x) => values.get(x));
      });
      return columns;
    },
    map: () => {
      const [image, rank, step] = ["image", "rank", "step"].map((name) => map.data[name][0]);
      const names = Array.from(step, (one) => stepSource.data.step[one]);
      return { rank, step: names, excess_ns: image, own_excess_ns: own ? own.data.image[0] : image };
    },
    steps: () => {
      const { data } = stepSource;
      return {
        step: data.step, step_time_ns: data.time, loss_ns: data.loss, max_rank: data.max_rank, min_rank: data.min_rank,
        late_start_ns: data.start, cpu_ns: data.cpu, after_last_launch_ns: data.after, gpu_ns: data.gpu,
        communication_ns: data.transfer, rest_ns: data.rest, cause: data.cause, kernel_index: data.index, kernel_name: data.kernel,
      };
    },
    collectives: () => model("shown:collectives").data,
  };
  for (const button of document.querySelectorAll("button[data-csv]")) {
    if (button.dataset.csv == "map" && !map) button.hidden = true;
    button.addEventListener("click", () => copyFrom(button, columnsCsv(FIGURES[button.dataset.csv]())));
  }
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", () => copyFrom(button, button.dataset.copy));
  }
  element("markdown").addEventListener("click", (event) => copyFrom(event.target, page.markdown));

  // the state in the address, like #step=2017&ranks=8-15&x=100-200, so that a view can be sent and undone
  const FIELDS = ["step", "ranks", "x", "layer", "kernel"], firstPlace = select.value;
  const readAddress = () => {
    const given = new URLSearchParams(location.hash.replace(/^#/, ""));
    return Object.fromEntries(FIELDS.filter((name) => given.get(name)).map((name) => [name, given.get(name)]));
  };
  const writeAddress = (state) => {
    const plain = (value) => encodeURIComponent(value).replace(/%(2C|2F|3A)/g, decodeURIComponent);
    const parts = FIELDS.filter((name) => state[name]).map((name) => `${name}=${plain(state[name])}`);
    return parts.length ? `#${parts.join("&")}` : "";
  };
  // "100-200" as two numbers; null for anything else
  const readSpan = (text) => {
    const found = /^(-?[\d.]+)-(-?[\d.]+)$/.exec(text ?? ""), [start, end] = found ? found.slice(1).map(Number) : [NaN, NaN];
    return start < end ? [start, end] : null;
  };
  let applying = true;
  const remember = () => {
    if (applying) return;
    const zoomed = Math.abs(kernels.start - whole[0]) > 0.5 || Math.abs(kernels.end - whole[1]) > 0.5;
    const state = {
      ranks: ranks?.value.trim(), x: zoomed ? `${Math.round(kernels.start)}-${Math.round(kernels.end)}` : null,
      layer: layer && layer.selectedIndex > 0 ? layer.value : null, kernel: element("kernels").open ? chosenKernel : null,
    };
    if (shown != firstPlace || state.ranks || state.x) state.step = labelOf(shown);
    const address = writeAddress(state);
    if (address != decodeURI(location.hash) && address != location.hash) history.pushState(null, "", address || location.pathname + location.search);
  };
  const apply = async () => {
    const state = readAddress(), span = readSpan(state.x);
    applying = true;
    if (layer && layer.value != (state.layer ?? layer.options[0].value)) {
      layer.value = state.layer ?? layer.options[0].value;
      if (layer.selectedIndex < 0) layer.selectedIndex = 0;
      showLayer();
    }
    const place = state.step == null ? firstPlace : String(stepSource.data.label.indexOf(state.step));
    const lines = state.ranks ?? "";
    if (place == "-1") missing(state.step, state.ranks);
    else if (place != shown || (ranks && lines != ranks.value.trim())) {
      if (ranks) ranks.value = lines;
      await go(place, state.ranks, span);
    } else setModel(kernels, { start: (span ?? whole)[0], end: (span ?? whole)[1] });
    if (lines && !ranks && place == shown) missing(labelOf(place), lines, "lines of further ranks");
    if (state.kernel) {
      element("kernels").open = true;
      await showKernel(Number(state.kernel));
    }
    applying = false;
  };
  window.addEventListener("popstate", apply);
  let zooming = 0;
  for (const end of ["start", "end"]) kernels.properties[end].change.connect(() => {
    clearTimeout(zooming);
    zooming = setTimeout(remember, 400);
  });
  // print what is open, and the evidence
  window.addEventListener("beforeprint", () => {
    element("evidence").open = true;
    // figures keep the widths that they have on the screen: side by side on paper, too, if they are
    document.body.classList.toggle("narrow", matchMedia("(max-width: 60rem)").matches);
  });

  if (element("strip-words")) showFirstKernel();
  await apply();
  document.documentElement.dataset.drawn = "true";
})().catch(failed);
