"use strict";
// Kernels of the step in view by keyboard: arrows read one after the other, + and − zoom, 0 shows all.

// `model` finds a model of the figures, `time` formats ns, `whole()` is the range of all kernels. Returns a function that
// forgets the kernel that was read last.
const enableKernelKeys = ({ model, time, whole, metrics }) => {
  const kernels = model("kernels");
  let at = -1;  // position of the kernel that was read last
  const read = (by) => {
    const ttke = model("shown:ttke"), names = model("names").data;
    at = Math.min(ttke.data.kernel_index.length - 1, Math.max(0, at + by));
    const index = ttke.data.kernel_index[at], [most] = ttke.tags;
    const said = metrics.filter((metric) => model(`title:${metric}`)).map((metric) => {
      const { data } = model(`shown:${metric}`), value = data.max[data.kernel_index.indexOf(index)];
      return `${model(`title:${metric}`).text.replace(/ −.*|:.*/, "")} ${time(value, metric != "launch_latency")}`;
    });
    setModel(model("crosshair"), { location: index, visible: true });
    element("kernel").textContent =
      `kernel ${index} ${names.short[ttke.data.code[at]]}` + (most == null ? "" : `; rank ${most}: ${said.join(", ")}`);
  };
  const zoom = (factor) => {
    const [first, last] = whole();
    const middle = at < 0 ? (kernels.start + kernels.end) / 2 : model("shown:ttke").data.kernel_index[at];
    const half = ((kernels.end - kernels.start) * factor) / 2;
    setModel(kernels, { start: Math.max(first, middle - half), end: Math.min(last, middle + half) });
  };
  const showAll = () => {
    const [start, end] = whole();
    setModel(kernels, { start, end });
  };
  const KEYS = { ArrowLeft: () => read(-1), ArrowRight: () => read(1), "+": () => zoom(0.5), "-": () => zoom(2), 0: showAll };
  element("figures-profile").addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    KEYS[event.key]();
    event.preventDefault();
  });
  return () => {
    element("kernel").textContent = "";
    at = -1;
  };
};
