"""Models of Bokeh as its documents in JSON hold them: a page is written without Bokeh's Python classes.

To load them takes longer than to analyze a small run. BokehJS draws the JSON; `as_bokeh` makes Python objects of it,
which checks every value.
"""

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from bokeh.models import GridPlot

_numbers = count(1)


class Model:
    """One model: its kind, such as `Range1d`, and the attributes that differ from Bokeh's defaults."""

    def __init__(self, kind: str, **attributes: Any) -> None:
        self.kind, self.attributes = kind, attributes
        self.id = f"j{next(_numbers)}"  # not equal in the documents of one notebook

    def update(self, **attributes: Any) -> None:
        self.attributes.update(attributes)

    def on_change(self, attribute: str, script: "Model") -> None:
        """Run a script in the browser when an attribute changes."""
        self._callbacks("js_property_callbacks", f"change:{attribute}").append(script)

    def on_event(self, event: str, script: "Model") -> None:
        """Run a script in the browser on an event such as `tap`."""
        self._callbacks("js_event_callbacks", event).append(script)

    def _callbacks(self, attribute: str, event: str) -> "list[Model]":
        callbacks: list[Model] = self.attributes.setdefault(attribute, {}).setdefault(event, [])
        return callbacks


class Source(Model):
    """Columns by name, which glyphs draw."""

    def __init__(self, columns: Mapping[str, Any], name: str, tags: Sequence[Any] = ()) -> None:
        super().__init__("ColumnDataSource", name=name, data=dict(columns), tags=list(tags))

    @property
    def data(self) -> dict[str, Any]:
        columns: dict[str, Any] = self.attributes["data"]
        return columns


class Text(NamedTuple):
    """A text that Bokeh would else read as the name of a column."""

    text: str

    def encode(self, _written: set[str]) -> dict[str, Any]:
        return {"type": "value", "value": self.text}


class Field(NamedTuple):
    """The value of a glyph's attribute for each row: a column of its source. All other values are of all rows."""

    column: str
    transform: Model | None = None

    def encode(self, written: set[str]) -> dict[str, Any]:
        transform = {} if self.transform is None else {"transform": _encode(self.transform, written)}
        return {"type": "field", "field": self.column, **transform}


EDGES: Final = {edge: Field(edge) for edge in ("left", "right", "top", "bottom")}
"""The edges of boxes, from columns of these names."""


class Figure(Model):
    """A figure with a title, two axes and a grid line at each tick."""

    def __init__(self, x_axis: Model, y_axis: Model, **attributes: Any) -> None:
        self.x_axis, self.y_axis = x_axis, y_axis
        self.x_grid, self.y_grid = Model("Grid", axis=x_axis), Model("Grid", axis=y_axis, dimension=1)
        self.renderers: list[Model] = []
        self.tools: list[Model] = []
        super().__init__(
            "Figure",
            below=[x_axis],
            left=[y_axis],
            center=[self.x_grid, self.y_grid],
            renderers=self.renderers,
            **attributes,
        )

    def draw(self, source: Source, glyph: Model, **attributes: Any) -> Model:
        """Add a glyph for each row of the source; return its renderer, which has these attributes."""
        renderer = Model("GlyphRenderer", data_source=source, glyph=glyph, **attributes)
        self.renderers.append(renderer)
        return renderer


def script(code: str, **args: Any) -> Model:
    """Return a script for the browser; `args` are its variables."""
    return Model("CustomJS", args=args, code=code)


def serialize_document(roots: Mapping[str, Model]) -> str:
    """Return these models by element as JSON: `document`, which Bokeh reads, and `roots`, element by model."""
    written: set[str] = set()
    models = [_encode(root, written) for root in roots.values()]
    document = {"version": version("bokeh"), "title": "jitter", "roots": models}
    elements = {root.id: element for element, root in roots.items()}
    return json.dumps({"document": document, "roots": elements}, allow_nan=False, separators=(",", ":"))


def _encode(value: Any, written: set[str]) -> Any:
    """Return a value as Bokeh's JSON; a model that is written already is its id."""
    if isinstance(value, Model):
        if value.id in written:
            return {"id": value.id}
        written.add(value.id)
        attributes = {name: _encode(one, written) for name, one in value.attributes.items()}
        return {"type": "object", "name": value.kind, "id": value.id, "attributes": attributes}
    if isinstance(value, (Field, Text)):
        return value.encode(written)
    if isinstance(value, dict):
        return {"type": "map", "entries": [[key, _encode(one, written)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_encode(one, written) for one in value]
    return _encode_array(value) if isinstance(value, np.ndarray) else _encode_scalar(value)


def _encode_scalar(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"type": "number", "value": "nan" if math.isnan(plain) else f"{plain:+}"}
    return plain


def _encode_array(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    small = array.astype({"int64": np.int32, "bool": np.int8}.get(array.dtype.name, array.dtype), order="C", copy=False)
    data = {"type": "bytes", "data": base64.b64encode(gzip.compress(small.tobytes(), 6, mtime=0)).decode()}
    return {"type": "ndarray", "array": data, "shape": list(small.shape), "dtype": small.dtype.name, "order": "little"}


def as_bokeh(drawn: Model) -> "GridPlot":
    """Return figures as an object for `bokeh.plotting.show`. Raises `ValueError` for a value that Bokeh refuses."""
    from bokeh.core.serialization import Deserializer
    from bokeh.models import GridPlot

    grid = Deserializer().decode(_encode(drawn, set()))
    assert isinstance(grid, GridPlot)
    return grid


def library_file() -> Path:
    """Return the file of BokehJS; Bokeh itself is not imported."""
    bokeh = find_spec("bokeh")
    assert bokeh is not None
    assert bokeh.submodule_search_locations
    return Path(bokeh.submodule_search_locations[0], "server", "static", "js", "bokeh.min.js")
