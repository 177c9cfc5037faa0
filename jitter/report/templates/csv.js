"use strict";
// Tables and figures as CSV, and a text to the clipboard.

const csvCell = (value) => {
  if (value == null || (typeof value == "number" && Number.isNaN(value))) return "";
  let text = String(value);
  if (typeof value != "number") {
    text = text.replace(/[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g, "\ufffd");
    // a spreadsheet would run a text from a trace that begins like a formula; a number may begin with a minus
    if (/^[\s\ufffd]*[=+@＝＋－＠-]/.test(text) && !/^-?[\d.,]+(\s?\S{1,2})?$/.test(text)) text = `'${text}`;
  }
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const csvText = (rows) => rows.map((row) => row.map(csvCell).join(",") + "\n").join("");

// Values as they are, not as the page rounds them; the unit of a column is in its head.
const tableCsv = (table) => {
  const shown = (cell) => cell.innerText.replace(/\s+/g, " ").trim();
  const text = (cell) => (cell.dataset.text ?? shown(cell)).replace(/^–$/, "");
  const value = (cell) => (cell.dataset.raw ? parseFloat(cell.dataset.raw) : cell.dataset.raw ?? text(cell));
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden && !row.classList.contains("evidence"));
  const unit = (column) => rows.map((row) => row.cells[column]?.dataset.unit).find((one) => one);
  const heads = [...table.tHead.rows[0].cells].map((cell, column) => shown(cell) + (unit(column) ? ` (${unit(column)})` : ""));
  return csvText([heads, ...rows.map((row) => [...row.cells].map(value))]);
};

// Columns of equal length to rows, with a head.
const columnsCsv = (columns) => {
  const names = Object.keys(columns), rows = Array.from(columns[names[0]] ?? [], (_, n) => names.map((name) => columns[name][n]));
  return csvText([names, ...rows]);
};

// One of the figures by name: "kernels:<series>", "map", "steps" or "collectives"; `model` finds a model by its name.
const figureCsv = (what, model) => {
  if (what.startsWith("kernels:")) {
    const name = what.slice(8), { data, tags } = model(`shown:${name}`), chosen = model(`chosen:${name}`).data;
    const names = model("names").data.full, others = { low: "others_lowest_ns", low_rank: "lowest_rank", high: "others_highest_ns", high_rank: "highest_rank" };
    const columns = { kernel_index: data.kernel_index, kernel_name: Array.from(data.code, (code) => names[code]) };
    if (tags[0] != null) columns[`rank_${tags[0]}_ns`] = data.max;
    if (tags[1] != null) columns[`rank_${tags[1]}_ns`] = data.min;
    for (const [column, head] of Object.entries(others)) columns[head] = data[column];
    Array.from(chosen.rank).forEach((rank, n) => {
      const at = new Map(Array.from(chosen.xs[n], (x, i) => [x, chosen.ys[n][i]]));
      columns[`chosen_rank_${rank}_ns`] = Array.from(data.kernel_index, (x) => at.get(x));
    });
    return columnsCsv(columns);
  }
  if (what == "map") {
    const { data } = model("shown:excess"), own = model("own:excess")?.data, steps = model("steps").data.step;
    const [image, rank, step] = [data.image[0], data.rank[0], data.step[0]];
    return columnsCsv({
      rank, step: Array.from(step, (at) => steps[at]), excess_ns: image, own_excess_ns: own ? own.image[0] : image,
    });
  }
  if (what == "steps") {
    const { data } = model("steps");
    return columnsCsv({
      step: data.step, step_time_ns: data.time, loss_ns: data.loss, max_rank: data.max_rank, min_rank: data.min_rank,
      late_start_ns: data.start, cpu_ns: data.cpu, after_last_launch_ns: data.after, gpu_ns: data.gpu, communication_ns: data.transfer, rest_ns: data.rest, cause: data.cause,
      kernel_index: data.index, kernel_name: data.kernel,
    });
  }
  return columnsCsv(model("shown:collectives").data);
};

const copyText = async (text) => {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch {
      // not allowed: copy by a selection
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.style.cssText = "position:fixed;opacity:0";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
};

// Copy, and say so on the button.
const copyFrom = async (button, text) => {
  const words = button.textContent;
  window.copied = text;
  await copyText(text);
  button.textContent = "copied";
  setTimeout(() => (button.textContent = words), 1200);
};
