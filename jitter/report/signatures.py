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

REPORT_SIGNATURES: Final = {"html": HTML_SIGNATURE, "json": JSON_SIGNATURE, "markdown": MARKDOWN_SIGNATURE}
"""The signature of each form of report that is written to a file."""
