"""Tables of PyTorch's profiler, published in talks: their figures, and the two forms in which they are written."""

HEADER = (
    "Name|Self CPU %|Self CPU|CPU total %|CPU total|CPU time avg|Self CUDA|Self CUDA %|CUDA total|CUDA time avg"
    "|# of Calls"
)
GPT_J = [
    "record_param_comms|0.22%|32.264ms|0.39%|56.688ms|41.078us|6478.273s|99.97%|7400.400s|5.363s|1380",
    "autograd::engine::evaluate_function: torch::autograd...|0.30%|43.386ms|0.61%|88.287ms|154.889us|0.000us|0.00%"
    "|6401.640s|11.231s|570",
    "hipLaunchKernel|0.19%|27.003ms|0.19%|27.003ms|3.919us|883.350s|13.63%|883.350s|128.208ms|6890",
    "aten::item|-0.00%|-233.000us|88.44%|12.753s|579.668ms|0.000us|0.00%|160.403s|7.291s|22",
]
BIGBIRD = [
    "aten::copy_|0.20%|13.452ms|18.30%|1.232s|265.930us|765.246ms|19.32%|944.254ms|203.854us",
    "aten::mm|0.07%|4.745ms|0.10%|6.544ms|22.108us|746.361ms|18.85%|761.703ms|2.573ms",
    "void at::native::modern::elementwise_kernel<at::nati...|0.00%|0.000us|0.00%|0.000us|0.000us|380.209ms"
    "|9.60%|380.209ms|271.190us",
]


def ruled(header: str, table: list[str]) -> str:
    """A table as PyTorch prints it: rulers, columns to the right, two blanks between them."""
    cells = [line.split("|") for line in (header, *table)]
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    ruler = "  ".join("-" * width for width in widths)
    return "\n".join([ruler, lines[0], ruler, *lines[1:], ruler, "Self CPU time total: 14.420s", "a  b  12%"]) + "\n"


def tabbed(header: str, table: list[str]) -> str:
    return "".join(line.replace("|", "\t") + "\n" for line in (header, *table))
