"""Tables and sentences of the Top-GAP chapter."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.evidence import tables
from suite.papers.top_gap import LOCATIONS, TITLES

MEASURES = {
    "mask_iou": "IOU",
    "class_map_sparsity": "mean of map",
    "erf_distance": "ERF distance",
    "fgsm": "FGSM",
    "pgd": "PGD",
}
RATIO = {True: " ratio", False: ""}
IN_TABLES = ["accuracy", "robust_accuracy", "mask_iou", "class_map_sparsity", "erf_distance"]


def select(table: pd.DataFrame, *, further: bool = False, **values: Any) -> pd.DataFrame:
    """Return the rows with these values, of trainings that did not diverge.

    Args:
        table: of the chapter.
        further: of trainings on the further data sets, else of those on the main one.
        values: by name of a column a value, or a list of values.
    """
    return tables.select(table, status="done", further=further, **values)


def measures(table: pd.DataFrame, metrics: list[str], **values: Any) -> pd.DataFrame:
    """Return rows as `select` without the battery, `what` each measures in a column.

    Robust accuracy is the paper's (unchanged predictions), the receptive field is its distance.
    """
    rows = select(table, metric=metrics, battery="none", **values)
    rows = rows[(rows["counts"] != "correct") & ~rows["part"].isin(["centre", "corner"])]
    what = rows["metric"].where(rows["metric"] != "robust_accuracy", rows["attack"])
    return rows.assign(what=what.where(rows["test"] == "own", "other backgrounds"))


def attacks(table: pd.DataFrame, battery: str, **values: Any) -> pd.DataFrame:
    """Return robust accuracies as `select`, with the `name` of each attack.

    Those of the battery "attacks" are named by their loss, others by their steps.
    """
    rows = select(table, metric="robust_accuracy", battery=battery, **values)
    if battery == "attacks":
        return rows.assign(name=rows["attack"] + (rows["loss"] == "logit_ratio").map(RATIO))
    return rows.assign(name=rows["attack"] + " " + rows["steps"].map("{:.0f}".format))


def means(rows: pd.DataFrame, index: list[str], columns: str) -> pd.DataFrame:
    """Return means ± standard deviations over seeds, and the number of seeds."""
    if rows.empty:
        return pd.DataFrame({"": ["not run at the profiles that are shown"]})
    index = ["profile", *index]
    groups = rows.groupby([*index, columns], sort=False)["value"]
    text = groups.agg(lambda v: f"{v.mean():.3f}" + (f" ± {v.std():.3f}" if len(v) > 1 else ""))
    wide = text.unstack(columns).fillna("not run")
    wide["seeds"] = rows.groupby(index, sort=False)["seed"].nunique()
    wide = wide.reset_index().rename_axis(columns=None)
    for name in wide.select_dtypes("float"):
        wide[name] = wide[name].map("{:g}".format)
    return wide.replace({"variant": TITLES})


def printed(published: Mapping[str, Any], number: str) -> tuple[str, pd.DataFrame]:
    """Return a table of the paper and its title."""
    entry = next(table for table in published["tables"] if table["number"] == number)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    words = {"nan": "–"} | ({True: "yes", False: "no"} if number == "7" else {})
    frame = frame.map(lambda v: f"{v:g}" if isinstance(v, float) else v).replace(words)
    return f"Table {number} of the paper: {entry['shows']}.", frame


def choices(table: pd.DataFrame) -> pd.DataFrame:
    """Return the k that is chosen without labels and the best one, by profile, seed and criterion.

    The chosen one has the mean map of the predicted class that is nearest to k, by ratio.
    """
    metrics = [name for name in IN_TABLES if name != "erf_distance"]
    rows = measures(table, [*metrics, "predicted_map_mean"], sweep=True)
    lines = []
    for (profile, seed), group in rows.groupby(["profile", "seed"], sort=False):
        wide = group.pivot_table(index="k", columns="what", values="value")
        distance = (wide["predicted_map_mean"] / wide.index).map(math.log).abs()
        chosen: Any = distance.idxmin()
        for name in map(str, wide):
            values = wide[name]
            if name not in ("predicted_map_mean", "class_map_sparsity"):
                line = {"profile": profile, "seed": seed, "criterion": MEASURES.get(name, name)}
                line |= {"chosen k": chosen, "best k": values.idxmax()}
                line |= {"loss": values.max() - values[chosen]}
                lines.append(line | {"loss of the worst k": values.max() - values.min()})
    return pd.DataFrame(lines)


def choices_by_criterion(chosen: pd.DataFrame) -> pd.DataFrame:
    """Put the seeds of `choices` together."""
    how: dict[str, Any] = dict.fromkeys(("loss", "loss of the worst k"), "mean")
    how = dict.fromkeys(("chosen k", "best k"), lambda v: ", ".join(f"{k:g}" for k in v)) | how
    return chosen.groupby(["profile", "criterion"], sort=False).agg(how).reset_index()


def receptive_fields(
    arrays: Mapping[str, NDArray[Any]], variants: list[str]
) -> list[list[NDArray[Any] | None]]:
    """Return the receptive fields of variants by location, each scaled to its largest value."""
    rows = [[arrays.get(f"erf|{v}|{location}") for location in LOCATIONS] for v in variants]
    return [[None if f is None else (255 * f / f.max()).astype(np.uint8) for f in r] for r in rows]


def map_rows(
    arrays: Mapping[str, NDArray[Any]], titles: Mapping[str, str], per_row: int = 4
) -> tuple[list[list[NDArray[Any] | None]], list[list[str]]]:
    """Return images with their maps beside them, and their titles, in rows of a few maps."""
    pictures, notes = [], []
    for n, image in enumerate(arrays["images"]):
        for start in range(0, len(titles), per_row):
            names = list(titles)[start : start + per_row]
            maps = [arrays[name][n] if name in arrays else None for name in names]
            pictures.append([image, *maps])
            notes.append([f"label {arrays['labels'][n]}", *(titles[name] for name in names)])
    return pictures, notes
