"""`jitter compare`: what changed between two runs, and whether it is more than noise."""

from functools import partial
from pathlib import Path

import click

from jitter.cli.options import (
    PATH,
    choose_outputs,
    force_option,
    form_options,
    numbers_option,
    steps_option,
    take_outputs,
    write_outputs,
)

DEFAULT_PAGE = Path("jitter-compare.html")
"""The path of the page without `-o`."""


@click.command
@click.argument("runs", nargs=-1, metavar="BASE... NEW", type=PATH)
@steps_option
@numbers_option("--base-steps", metavar="A-B", help="Use these steps of the base. Default: as --steps.")
@click.option("--kind", metavar="KIND", help="Compare steps of this kind: decode, prefill, … Default: the commonest.")
@click.option(
    "--names", metavar="A,B", help="Names of the runs, in their order. Default: the shortest paths that differ."
)
@form_options(DEFAULT_PAGE)
@force_option
def compare(
    runs: tuple[Path, ...],
    steps: list[int] | None,
    base_steps: list[int] | None,
    kind: str | None,
    names: str | None,
    forms: list[str],
    outputs: tuple[Path, ...],
    force: bool,
) -> None:
    """Compare the step of a new run with that of its base: slower, faster, same or incomparable, and what makes it.

    A run is a lake, or a file that `jitter export --baseline` wrote. With several bases, what they differ by counts as
    noise. `jitter explain compare` says how.

    \b
    Examples:
        jitter compare before-lake after-lake
        jitter compare run1-lake run2-lake run3-lake new-lake
        jitter compare main/jitter-lake branch/jitter-lake --names main,branch
        jitter compare base.json new-lake --steps 2005-2049 --html -o diff.html
        jitter compare base.json new-lake --json | jq .verdict
    """
    from jitter.cli.lakes import open_prepared
    from jitter.comparison.compare_documents import compare_documents, render_comparison_json
    from jitter.comparison.runs import load_runs
    from jitter.report.comparison import print_comparison, render_comparison_html, render_comparison_markdown

    paths, files = take_outputs(runs, forms, outputs, reads_json=True)
    chosen = choose_outputs(forms, files, of_traces=False, force=force, page=DEFAULT_PAGE)
    given_names = [] if names is None else [name.strip() for name in names.split(",")]
    bases, new = load_runs(paths, steps, base_steps, given_names, kind, open_prepared)
    comparison = compare_documents(bases, new)
    render = {
        "html": partial(render_comparison_html, bases, new, comparison),
        "json": partial(render_comparison_json, comparison),
        "markdown": partial(render_comparison_markdown, comparison),
    }
    write_outputs(chosen, lambda form: render[form](), partial(print_comparison, comparison))
