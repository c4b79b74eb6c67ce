"""Runs of "your network" side by side: a table of their dials, and one picture with their maps."""

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
        runs: names of runs, as `suite run` prints them.
        folder: of results of runs.

    Returns:
        The table, and where both are.

    Raises:
        UsageError: there is no such run.
    """
    paper: Any = notebooks.paper(CHAPTER)
    found = {run: _read(run, folder) for run in runs}
    rows = pd.concat([frame.assign(run=run) for run, (frame, _) in found.items()])
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
    if rows["data"].nunique() == 1:  # else they have no images in common
        images = load_data(rows["data"].iloc[0]).test.images.numpy()
        arrays = {run: arrays for run, (_, arrays) in found.items()}
        figures.insert(0, _maps(arrays, images, paper.NAMES["maps"].values()))
    parts = [Image.open(io.BytesIO(plots.as_bytes(figure))) for figure in figures]
    whole = Image.new("RGB", (max(p.width for p in parts), sum(p.height for p in parts)), "white")
    for n, part in enumerate(parts):
        whole.paste(part, (0, sum(p.height for p in parts[:n])))
    whole.save(picture := file.with_suffix(".png"))
    return f"{table.to_string()}\n\n{file}\n{picture}"


def _read(run: str, folder: Path) -> tuple[pd.DataFrame, Arrays]:
    """Return rows and arrays of a run, or else those that are kept."""
    file = folder / run / f"{CHAPTER}.csv"
    if file.is_file():
        if not file.with_suffix(ARRAYS).is_file():
            raise UsageError(f"{run}: expected {file.with_suffix(ARRAYS)}; run it again")
        return pd.read_csv(file), safetensors.numpy.load_file(file.with_suffix(ARRAYS))
    kept = load_results(CHAPTER, run)
    if kept.frame.empty:
        raise unknown("run", run, [path.parent.name for path in folder.glob(f"*/{CHAPTER}.csv")])
    return kept.frame, kept.arrays


def _maps(arrays: Mapping[str, Arrays], images: Any, methods: Iterable[str]) -> Figure:
    """Draw the images above their maps, by the methods that all runs have, a column a run."""
    maps = [f"maps|{method}" for method in methods]
    maps = [n for n in maps if all(n in part for part in arrays.values())]
    count = min((len(part[n]) for part in arrays.values() for n in maps), default=1)
    columns = [(n, run) for n in range(count) for run in arrays]
    rows = [[arrays[run][name][n] for n, run in columns] for name in maps]
    labels = ["image", *(name.removeprefix("maps|") for name in maps)]
    drawn = [[images[n] for n, _ in columns], *rows]
    return plots.pictures(drawn, titles=[run for _, run in columns], labels=labels)
