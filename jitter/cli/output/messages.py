"""Messages to the user on stderr: one line each, whatever the names and paths in it contain."""

import click

from jitter.core.formatting import escape_control


def say(text: str) -> None:
    """Print a message on stderr as one line, with control characters replaced."""
    click.echo(escape_control(text), err=True)
