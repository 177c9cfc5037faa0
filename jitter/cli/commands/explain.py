"""`jitter explain`: the guide on the terminal."""

import sys

import click

from jitter.core.formatting import format_columns


@click.command
@click.argument("words", nargs=-1, metavar="[TOPIC]")
def explain(words: tuple[str, ...]) -> None:
    """Print a topic of the guide: definitions, formats, how to record. Without a topic, list them.

    On a terminal the text is formatted; into a pipe it goes as markdown.

    \b
    Examples:
        jitter explain
        jitter explain metrics
        jitter explain recording > recording.md
    """
    from jitter import guide

    if not words:
        topics = ((guide_topic.name, guide_topic.summary) for guide_topic in guide.topics())
        click.echo(format_columns(topics, left=(0, 1)), nl=False)
        return
    text = guide.text(" ".join(words))
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text), width=min(console.width, _WIDEST))


_WIDEST = 110
"""Columns: longer lines are hard to read."""
