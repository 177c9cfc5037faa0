"""The report as terminal text, JSON, Markdown, an HTML page and a live page."""
