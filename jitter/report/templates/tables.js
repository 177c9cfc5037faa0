"use strict";
// Tables that sort by a click on a column's head, filter by a word, and copy as CSV; a text to the clipboard.

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
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const unit = (column) => rows.map((row) => row.cells[column]?.dataset.unit).find((one) => one);
  const heads = [...table.tHead.rows[0].cells].map((cell, column) => shown(cell) + (unit(column) ? ` (${unit(column)})` : ""));
  return csvText([heads, ...rows.map((row) => [...row.cells].map(value))]);
};

// Columns of equal length to rows, with a head.
const columnsCsv = (columns) => {
  const names = Object.keys(columns), rows = Array.from(columns[names[0]] ?? [], (_, n) => names.map((name) => columns[name][n]));
  return csvText([names, ...rows]);
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


const UNITS = { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9, "%": 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
// The number at the start of a text, with its unit: "−78.2 µs", "1,152", "0.74%"; null for anything else.
const measured = (text) => {
  const found = /^([+−<-]?)<?([\d,]+(?:\.\d+)?)\s*(ns|µs|ms|s|%|B|KiB|MiB|GiB)?(?![\w])/.exec(text.trim());
  if (!found) return null;
  const size = parseFloat(found[2].replaceAll(",", "")) * (UNITS[found[3]] ?? 1);
  return found[1] == "−" || found[1] == "-" ? -size : size;
};
const cellText = (row, column) => row.cells[column]?.innerText.trim() ?? "";
// The value of a cell where the page holds it, else the number that its text begins with.
const cellNumber = (row, column, text) => {
  const raw = row.cells[column]?.dataset.raw;
  if (raw != null) return raw == "" ? null : parseFloat(raw);
  return measured(text);
};

const sortTable = (table, column, ascending) => {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const text = cellText(row, column).replace(/^(epoch \d+, )?step /, "");
    return { row, text, number: cellNumber(row, column, text) };
  });
  const sign = ascending ? 1 : -1;
  keyed.sort((a, b) => {
    if (a.number != null && b.number != null) return sign * (a.number - b.number);
    if ((a.number == null) != (b.number == null)) return a.number == null ? 1 : -1;  // the unknown comes last
    return sign * a.text.localeCompare(b.text, undefined, { numeric: true });
  });
  body.append(...keyed.map((one) => one.row));
  for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", ascending ? "ascending" : "descending");
};

const filterTable = (table, word) => {
  const wanted = word.trim().toLowerCase();
  for (const row of table.tBodies[0].rows) {
    const there = [...row.cells].some((cell) => `${cell.innerText} ${cell.title}`.toLowerCase().includes(wanted));
    row.hidden = wanted != "" && !there;
  }
};

const enableTables = (root) => {
  for (const table of root.querySelectorAll("table[data-tools]")) {
    const bar = document.createElement("div");
    bar.className = "tools";
    const filter = Object.assign(document.createElement("input"), {
      type: "search", placeholder: `filter: ${table.dataset.tools}`, autocomplete: "off", ariaLabel: `filter by ${table.dataset.tools}`,
    });
    filter.addEventListener("input", () => filterTable(table, filter.value));
    const copy = Object.assign(document.createElement("button"), { type: "button", textContent: "copy as CSV" });
    copy.addEventListener("click", () => copyFrom(copy, tableCsv(table)));
    bar.append(filter, copy);
    table.parentElement.before(bar);
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      head.tabIndex = 0;
      head.title ||= "sort";
      const sort = () => sortTable(table, column, head.getAttribute("aria-sort") != "ascending");
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key == "Enter" && sort());
    }
  }
};
