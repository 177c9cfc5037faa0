"""Signatures of the report files that jitter writes: the bytes by which an earlier report is recognized.

A command that overwrites a report checks the signature first, before anything is computed. The signatures are apart
from the renderers so that this check does not load Jinja2 or Bokeh.
"""

from typing import Final

HTML_SIGNATURE: Final = b'<meta name="generator" content="jitter '
"""Stands near the top of every HTML page (`templates/page.html.j2`)."""

JSON_SIGNATURE: Final = b'{\n "schema_version"'
"""The first bytes of a JSON report."""

MARKDOWN_SIGNATURE: Final = b"# jitter report"
"""The first line of a Markdown report."""

COMPARISON_MARKDOWN_SIGNATURE: Final = b"# jitter compare"
"""The first line of a comparison in Markdown."""

REPORT_SIGNATURES: Final = {"html": HTML_SIGNATURE, "json": JSON_SIGNATURE, "markdown": MARKDOWN_SIGNATURE}
"""The signature of each form of report that is written to a file."""

COMPARISON_SIGNATURES: Final = {
    "html": HTML_SIGNATURE,
    "json": JSON_SIGNATURE,
    "markdown": COMPARISON_MARKDOWN_SIGNATURE,
}
"""The signature of each form of comparison that is written to a file."""
