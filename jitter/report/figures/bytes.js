// Format a size with a binary unit.
const power = Math.max(0, Math.min(4, Math.floor(Math.log2(tick) / 10 + 1e-9)));
return `${parseFloat((tick / 1024 ** power).toFixed(1))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
