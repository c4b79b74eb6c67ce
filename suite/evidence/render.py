"""Text from templates: pages and tables in Markdown."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any


def cell(value: Any) -> str:
    """Escape a value for a cell of a table.

    >>> cell("a|b")
    'a\\\\|b'
    """
    return str(value).replace("|", "\\|")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown, with escaped bars.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def words(name: str) -> str:
    """Write a name with spaces for hyphens and underscores.

    >>> words("marginal_density")
    'marginal density'
    """
    return name.replace("-", " ").replace("_", " ")


@cache
def templates(folder: Path) -> Any:
    """Return the templates of a folder, each compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    strict: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True}
    environment = Environment(loader=FileSystemLoader(folder), lstrip_blocks=True, **strict)
    environment.filters |= {"words": words, "cell": cell}
    return environment


def render(template: Path, **values: Any) -> str:
    """Fill in a template; it may use `table` and the filters `words` and `cell`."""
    page = templates(template.parent).get_template(template.name)
    return str(page.render(values, table=markdown_table)).rstrip() + "\n"
