"""Mathematics without the network: copy one file of MathJax into the book, and load that.

The file, `tex-svg-full.js`, holds all of TeX and draws with SVG, so it needs no fonts.
"""

import shutil
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PACKAGE = "sphinx-mathjax-offline"
SCRIPT = "tex-svg-full.js"


def copy_script(app: Sphinx, exception: Exception | None) -> None:
    """Copy MathJax to where `mathjax_path` points."""
    if exception is None and app.builder.format == "html":
        source = distribution(PACKAGE).locate_file(f"{PACKAGE}/static/mathjax/{SCRIPT}")
        target = Path(app.outdir, "_static", "mathjax", SCRIPT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(source), target)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.connect(
        "config-inited", lambda _, config: setattr(config, "mathjax_path", f"mathjax/{SCRIPT}")
    )
    app.connect("build-finished", copy_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
