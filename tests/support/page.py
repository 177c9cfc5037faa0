"""The content of a written page, read back without the code that wrote it."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np

_DTYPES = {"float64": "<f8", "float32": "<f4", "int32": "<i4", "int8": "<i1", "int64": "<i8", "uint16": "<u2"}


def item(page: str) -> dict[str, Any]:
    """The JSON of all figures."""
    found = re.search(r'<script type="application/json" id="figures-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def page_data(page: str) -> dict[str, Any]:
    """What the script of the page reads: the embedded steps, and durations of kernels."""
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def decode(value: Any) -> Any:
    """Arrays as the page's script reads them."""
    if isinstance(value, dict) and "b64" in value:
        raw = base64.b64decode(value["b64"])
        return np.frombuffer(raw, dtype=_DTYPES[value["dtype"]]).reshape(value["shape"])
    if isinstance(value, list):
        return [decode(one) for one in value]
    return {key: decode(one) for key, one in value.items()} if isinstance(value, dict) else value


def sources(page: str, name: str) -> dict[str, dict[str, Any]]:
    """Every named data source in the page, which must have the figures `name`: columns as lists and arrays, `tags`."""
    figures = item(page)
    assert f"figures-{name}" in figures["roots"].values()
    found = {}
    for model in models(figures):
        attributes = model.get("attributes", {})
        if model.get("name") == "ColumnDataSource" and "name" in attributes:
            entries = attributes["data"]["entries"]
            found[attributes["name"]] = {key: _values(value) for key, value in entries} | {
                "tags": attributes.get("tags")
            }
    return found


def titles(page: str) -> list[str]:
    """The figures' titles, in order."""
    return [m["attributes"].get("text", "") for m in models(item(page)) if m.get("name") == "Title"]


def models(node: Any) -> Any:
    """All models of the figures, outer ones first."""
    if isinstance(node, dict):
        if node.get("type") == "object":
            node.setdefault("attributes", {})
            yield node
        for value in node.values():
            yield from models(value)
    elif isinstance(node, list):
        for value in node:
            yield from models(value)


def _values(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "ndarray":
        raw = base64.b64decode(value["array"]["data"])
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        return np.frombuffer(raw, dtype=_DTYPES[value["dtype"]]).reshape(value["shape"])
    if isinstance(value, list):
        return [_values(v) for v in value]
    if isinstance(value, dict) and value.get("type") == "number":
        return float(value["value"])
    return value


class Text(HTMLParser):
    """The visible content of a page: text outside of scripts and styles, and every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._silent = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)

    @property
    def all(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))
