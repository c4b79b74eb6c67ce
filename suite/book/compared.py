"""Compare runs of "your network": a table of their dials, and one picture with their maps."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.numpy
from matplotlib.figure import Figure
from PIL import Image

from suite import notebooks, plots
from suite.data import load_data
from suite.errors import UsageError, unknown
from suite.evidence.results import ARRAYS, Arrays, load_results

CHAPTER = "your_network"


def compare(runs: Sequence[str], folder: Path) -> str:
    """Write the dials of several runs as a table, and as a picture with maps of the same images.

    Args:
        runs: names of runs, as printed by `suite run`.
        folder: of the results of runs.

    Returns:
        The table and the paths of both files.

    Raises:
        UsageError: there is no such run.
    """
    paper: Any = notebooks.paper(CHAPTER)
    results = {run: _read(run, folder) for run in runs}
    rows = pd.concat([frame.assign(run=run) for run, (frame, _) in results.items()])
    rows = rows[rows["who"] == paper.YOURS].dropna(subset="value")
    titles = {name: about["title"] for name, about in paper.DIALS.items()}
    texts = [paper.text(row) for row in rows.to_dict("records")]
    rows = rows.assign(title=rows["dial"].map(titles), text=texts)
    table = rows.pivot(index="title", columns="run", values="text")
    table = table.reindex(titles.values()).reindex(columns=runs).fillna("–")
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(file := folder / f"{CHAPTER}.compared.csv")
    curved = rows["dial"].str.startswith("curved")  # logarithms
    rows.loc[curved, paper.ENDS] = 10 ** rows.loc[curved, paper.ENDS]
    plots.set_style()
    figures = [plots.intervals(rows, {title: " → ".join(row) for title, row in table.iterrows()})]
    if rows["data"].nunique() == 1:  # else they share no images
        images = load_data(rows["data"].iloc[0]).test.images.numpy()
        arrays = {run: arrays for run, (_, arrays) in results.items()}
        figures.insert(0, _draw_maps(arrays, images, paper.NAMES["maps"].values()))
    parts = [Image.open(io.BytesIO(plots.as_bytes(figure))) for figure in figures]
    size = max(part.width for part in parts), sum(part.height for part in parts)
    picture = Image.new("RGB", size, "white")
    for n, part in enumerate(parts):
        picture.paste(part, (0, sum(above.height for above in parts[:n])))
    picture.save(file.with_suffix(".png"))
    return f"{table.to_string()}\n\n{file}\n{file.with_suffix('.png')}"


def _read(run: str, folder: Path) -> tuple[pd.DataFrame, Arrays]:
    """Return the rows and arrays of a run, or the kept ones of a profile."""
    file = folder / run / f"{CHAPTER}.csv"
    if file.is_file():
        if not file.with_suffix(ARRAYS).is_file():
            raise UsageError(f"{run}: expected {file.with_suffix(ARRAYS)}; run it again")
        return pd.read_csv(file), safetensors.numpy.load_file(file.with_suffix(ARRAYS))
    kept = load_results(CHAPTER, run)
    if kept.frame.empty:
        raise unknown("run", run, [path.parent.name for path in folder.glob(f"*/{CHAPTER}.csv")])
    return kept.frame, kept.arrays


def _draw_maps(arrays: Mapping[str, Arrays], images: Any, methods: Iterable[str]) -> Figure:
    """Draw images above their maps by the methods that all runs have, one column for each run."""
    maps = {n: [a[f"maps|{n}"] for a in arrays.values() if f"maps|{n}" in a] for n in methods}
    maps = {name: parts for name, parts in maps.items() if len(parts) == len(arrays)}
    count = min((len(part) for parts in maps.values() for part in parts), default=1)
    rows = [[part[n] for n in range(count) for part in parts] for parts in maps.values()]
    top = [images[n] for n in range(count) for _ in arrays]
    return plots.pictures([top, *rows], titles=[*arrays] * count, labels=["image", *maps])
