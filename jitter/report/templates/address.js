"use strict";
// The state of the page in its address, like #step=2017&ranks=8-15&x=100-200, so that a view can be sent and undone.

const ADDRESS_FIELDS = ["step", "ranks", "x", "part", "layer", "at"];
const readAddress = (hash) => {
  const text = hash.replace(/^#/, "");
  if (!text.includes("=")) return text ? { at: text } : {};
  const found = new URLSearchParams(text);
  return Object.fromEntries(ADDRESS_FIELDS.filter((name) => found.get(name)).map((name) => [name, found.get(name)]));
};
const writeAddress = (state) => {
  const plain = (value) => encodeURIComponent(value).replace(/%(2C|2F|3A)/g, decodeURIComponent);
  const parts = ADDRESS_FIELDS.filter((name) => state[name]).map((name) => `${name}=${plain(state[name])}`);
  return parts.length ? `#${parts.join("&")}` : "";
};
// "100-200" as two numbers; null for anything else
const readSpan = (text) => {
  const found = /^(-?[\d.]+)-(-?[\d.]+)$/.exec(text ?? "");
  const [start, end] = found ? [parseFloat(found[1]), parseFloat(found[2])] : [NaN, NaN];
  return start < end ? [start, end] : null;
};
