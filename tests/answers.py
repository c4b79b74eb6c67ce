"""The first sentences of sections, held to the verdicts that they rest on."""

import json

import pandas as pd

from suite import notebooks


def check_answer(
    chapter: str, section: str, verdicts: pd.DataFrame, expected: list[tuple[str, ...]]
) -> None:
    """Check that a section opens in bold and that its verdicts are those that were kept.

    `expected` holds claim, data, for some chapters network, and last the verdict.
    """
    cells = json.loads(notebooks.source(chapter).read_text())["cells"]
    page = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    (text,) = page.split(f"## {section}")[1:]
    assert text.split("\n\n")[1].startswith("**")
    for *key, verdict in expected:
        columns = ["claim", "data", "network"][: len(key)]
        rows = verdicts[(verdicts[columns] == key).all(axis=1)]
        assert rows["verdict"].tolist() == [verdict], key
