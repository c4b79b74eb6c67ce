"""Sphinx extension: the API reference leaves out what a docstring has said already."""

from typing import Any, NamedTuple


class _Example(NamedTuple):
    field: int


def skip_fields(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Skip fields of named tuples, which the docstring of the class lists with their shapes."""
    return True if isinstance(member, type(_Example.field)) else None


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-skip-member", skip_fields)
    return {"version": "1", "parallel_read_safe": True}
