"use strict";
// The figures of the page: a written page contains them; a live page gets them, and its text, from the server.

const element = (id) => document.getElementById(id);
// colours and zoom stay in the browser: they are not sent to the server of a live page
const setModel = (model, values) => model.setv(values, { sync: false });
const isLive = () => element("session") != null;

// The server still prepares the run: show how far it is, and what is known already; then load the page again.
const waitForRun = (told) => {
  const bar = element("progress");
  const follow = () => {
    const { body, loading, fraction, ready } = told.data;
    if (ready[0]) return location.reload();
    if (body[0]) element("body").innerHTML = body[0];  // written by the server, texts from traces escaped
    bar.querySelector("progress").value = fraction[0];
    bar.querySelector("span").textContent = `${loading[0]}…`;
  };
  told.properties.data.change.connect(follow);
  follow();
  document.documentElement.dataset.loading = "true";
};

const loadLive = async () => {
  const token = JSON.parse(element("session").textContent);
  const address = new URL("ws", location.href);
  address.protocol = location.protocol == "https:" ? "wss:" : "ws:";
  const session = await Bokeh.require("client/connection").pull_session(address.href, token);
  const figures = session.document, told = figures.get_model_by_name("told");
  document.title = figures.title();
  if (told.data.loading) {
    waitForRun(told);
    return null;
  }
  element("body").innerHTML = told.data.body[0];  // written by the server, texts from traces escaped
  element("body").ariaBusy = false;
  element("progress").hidden = true;
  enableTables(element("body"));
  // paint before the first drawing: a canvas keeps a rim of its first colours
  if (isDark()) paintModels(figures, setModel);
  if (isNarrow()) narrowModels(figures, setModel);
  const places = figures.roots().map((root) => element(`figures-${root.name}`));
  await Bokeh.embed.add_document_standalone(figures, element("body"), places);
  return figures;
};

const loadWritten = async () => {
  const { document: json, roots } = JSON.parse(paintJson(element("figures-data").textContent));
  if (isNarrow()) narrowJson(json);
  const item = { docid: "page", roots, root_ids: Object.keys(roots) };
  const [views] = await Bokeh.embed.embed_items({ page: json }, [item]);
  const figures = [...views][0].model.document;
  if (isDark()) paintMap(figures, setModel);
  return figures;
};

// Bokeh draws the symbols of a legend once, and not if its glyphs have no data yet.
const drawLegends = (figures) => {
  for (const model of figures._all_models.values()) if (model.type == "Legend") model.change.emit();
};

// The document of the figures; null on a live page whose run is not ready.
const loadFigures = async () => {
  const figures = await (isLive() ? loadLive() : loadWritten());
  if (figures == null) return null;
  followColours(figures, setModel);
  drawLegends(figures);
  return figures;
};
