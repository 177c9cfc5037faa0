"""`python -m tests.notebooks.render [NAME…]`: run the notebooks and keep their outputs, figures as PNG."""

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
from bokeh.resources import INLINE
from nbclient import NotebookClient
from PIL import Image

from tests.notebooks.outputs import FIGURE, FOLDER, NAMES, stable_outputs
from tests.support.chromium import ARGUMENTS, CHROMIUM

LIMIT_S: Final = 1200
"""Of a cell."""
_WIDTH_PX: Final = 860
_COLOURS: Final = 200
"""Colours of a PNG: lines and text need few, and the file is a third as large."""


def main() -> None:
    """Run the notebooks and write them with their outputs."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        sys.exit("no chromium is installed: figures cannot be drawn")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for name in sys.argv[1:] or NAMES:
            path = FOLDER / name
            notebook = execute(nbformat.read(path, as_version=4))
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs = [_static(nbformat.from_dict(one), browser) for one in stable_outputs(cell)]
                cell.metadata.pop("execution", None)
            notebook.metadata["language_info"] = {"name": "python"}
            nbformat.write(notebook, path)
            print(f"{name}: {path.stat().st_size / 1e3:.0f} kB")
        browser.close()


def execute(notebook: Any) -> Any:
    """Run a notebook in a folder of its own and return it."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = "/tmp"  # long paths cut tables elsewhere
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(
            notebook, timeout=LIMIT_S, kernel_name="python3", resources=resources, coalesce_streams=True
        )
        return client.execute()


def _static(output: Any, browser: Any) -> Any:
    """Return the output with a PNG in place of a figure."""
    if "data" not in output or FIGURE not in output.data:
        return output
    image = base64.b64encode(_draw(output.data["application/javascript"], browser)).decode()
    return nbformat.v4.new_output("display_data", {"image/png": image, "text/plain": "figure"})


def _draw(script: str, browser: Any) -> bytes:
    """Return the PNG of a figure, given the script that draws it into an element with an identifier."""
    (place,) = re.findall(r'"roots":\{"[^"]+":"([0-9a-f-]+)"\}', script)
    page = browser.new_page(viewport={"width": _WIDTH_PX, "height": 600})
    library = "\n".join(INLINE.js_raw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.html"
        path.write_text(
            f'<meta charset=utf-8><script>{library}</script><div id="{place}"></div><script>{script}</script>', "utf-8"
        )
        page.goto(path.as_uri())
        page.wait_for_function("Bokeh.documents.length && Bokeh.documents.every((one) => one.is_idle)", timeout=60_000)
        page.wait_for_timeout(500)
        shot = page.screenshot(full_page=True)
    page.close()
    small = Image.open(io.BytesIO(shot)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    written = io.BytesIO()
    small.save(written, "PNG", optimize=True)
    return written.getvalue()


if __name__ == "__main__":
    main()
