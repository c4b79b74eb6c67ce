"""The role `v`: a measured value by its key, as in {v}`top_gap:clean-accuracy-kept|points`.

A key is in `executed/values.json`, which the build writes; behind a bar stands a form of
`suite.evidence.quote.Value`, or `badge` for the verdict with its scale. An unknown key warns with
the page and its line, and the build fails on warnings.
"""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from suite.evidence.html import badge
from suite.evidence.quote import Value

logger = logging.getLogger(__name__)
FILE = Path("executed", "values.json")


class ValueRole(SphinxRole):
    """Put a measured value into a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the value as text, or as a badge."""
        values = _values(str(self.env.srcdir))
        self.env.note_dependency(str(FILE))
        key, _, form = self.text.partition("|")
        if key not in values:
            near = ", ".join(sorted(name for name in values if name.startswith(key[:12]))[:5])
            logger.warning(
                "unknown value %r; near it: %s", key, near or "none", location=self.get_location()
            )
            return [nodes.inline(self.text, self.text)], []
        value = Value(**values[key])
        if form == "badge":
            return [nodes.raw("", badge(value.word, value.scale), format="html")], []
        text = format(value, form)
        return [nodes.inline(text, text)], []


def _values(source: str) -> dict[str, Any]:
    file = Path(source, FILE)
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_role("v", ValueRole())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
