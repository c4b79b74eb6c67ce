"""Text from templates: pages, boxes and tables in Markdown."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def cell(value: Any) -> str:
    """Write a value into a cell of a table.

    >>> cell("a|b")
    'a\\\\|b'
    """
    return str(value).replace("|", "\\|")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown; bars within cells are escaped.

    >>> print(markdown_table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def words(name: str) -> str:
    """Write a name with spaces.

    >>> words("marginal_density")
    'marginal density'
    """
    return name.replace("-", " ").replace("_", " ")


def render(template: Path, **values: Any) -> str:
    """Fill in a template, which can use `table` and the filters `words` and `cell`."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"words": words, "cell": cell}
    page = environment.get_template(template.name).render(values, table=markdown_table)
    return page.rstrip() + "\n"
