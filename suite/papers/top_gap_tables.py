"""Tables and pictures of the Top-GAP chapter."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import load_data
from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.papers.top_gap import LOCATIONS, TITLES, rounded
from suite.paths import ROOT

MEASURES = {
    "accuracy": "clean accuracy",
    "shifted": "other backgrounds",
    "mask_iou": "IOU",
    "mask_iou_beyond_others": "IOU beyond others",
    "class_map_sparsity": "mean of map",
    "centre": "centre ERF",
    "corner": "corner ERF",
    "distance": "ERF distance",
    "fgsm": "FGSM",
    "pgd": "PGD",
}
ATTACKS = {"fgsm": "FGSM", "pgd": "PGD", "auto_attack": "AutoAttack"}
STANDARD_STEPS = 100  # of APGD and FAB in AutoAttack
LOCATIONS_OF_PAPER = 56 * 56  # of the class maps of its ResNet-18, for images of 224 pixels
IN_TABLES = ["accuracy", "robust_accuracy", "mask_iou", "class_map_sparsity", "erf_distance"]


def select(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows with these values, of trainings that did not diverge.

    Names that are empty are missing in kept rows.
    """
    texts = [name for name in ("attack", "parts", "part", "counts") if name in table]
    filled = table[texts].astype(object).fillna("")
    return tables.select(table.assign(**filled), status="done", **values)


def measures(
    table: pd.DataFrame, metrics: list[str], epsilon: float, **values: Any
) -> pd.DataFrame:
    """Return rows as `select`, with `what` each measures, a key of `MEASURES`, in a column.

    Robust accuracy is the paper's (unchanged predictions), under its attacks with `epsilon`.
    """
    rows = select(table, metric=metrics, battery="none", **values)
    rows = rows[(rows["counts"] != "correct") & (rows["test"] != "validation")]
    rows = rows[rows["epsilon"].isin([0.0, rounded(epsilon)])]
    what = rows["metric"].mask(rows["attack"] != "", rows["attack"])
    what = what.mask(rows["part"] != "", rows["part"])
    return rows.assign(what=what.mask(rows["test"] == "shifted", "shifted"))


def ablation(table: pd.DataFrame, epsilons: list[float]) -> pd.DataFrame:
    """Return clean accuracy of the eight variants and, by its radius, what each attack leaves.

    Robust accuracy is the paper's (unchanged predictions); `what` is what the column is called.
    """
    variants = list(TITLES)[:8]
    clean = select(table, metric="accuracy", test="own", main=True, variant=variants)
    attacked = select(
        table,
        metric="robust_accuracy",
        battery=["none", "auto"],
        counts="unchanged",
        main=True,
        variant=variants,
        epsilon=[rounded(epsilon) for epsilon in epsilons],
    )
    names = attacked["attack"].map(ATTACKS) + _fewer_steps(attacked)
    names += (255 * attacked["epsilon"]).map(", {:.3g}/255".format)
    return pd.concat([clean.assign(what="clean accuracy"), attacked.assign(what=names)])


def _fewer_steps(rows: pd.DataFrame) -> "pd.Series[str]":
    """Return what the name of an AutoAttack that is not the standard one, of 100 steps, ends in."""
    standard = (rows["attack"] != "auto_attack") | (rows["steps"] == STANDARD_STEPS)
    return rows["steps"].map(" of {:.0f} steps".format).mask(standard, "")


def attacks(table: pd.DataFrame, battery: str | list[str], **values: Any) -> pd.DataFrame:
    """Return robust accuracies as `select`, with the `name` of each attack.

    Of the battery "auto" they are the usual ones (right before and after), unless `values` say.
    """
    if battery == "auto":
        values = {"counts": "correct"} | values
    rows = select(table, metric="robust_accuracy", battery=battery, **values)
    names = rows["attack"].str.replace("_", " ") + " " + rows["steps"].map("{:.0f}".format)
    names = names.mask(rows["attack"] == "transfer", "transfer")
    names = names.mask(rows["attack"] == "auto_attack", "AutoAttack" + _fewer_steps(rows))
    names = names.mask(rows["parts"] != "", rows["parts"])
    names = names.mask(rows["scale"] != 1, "logits × " + rows["scale"].map("{:g}".format))
    return rows.assign(name=names + ", ε " + (255 * rows["epsilon"]).map("{:.3g}/255".format))


def sizes(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Return the means of class maps by k, and `who` measured them: the paper in its Table A8."""
    rows = select(table, metric="class_map_sparsity", sweep=True)
    rows = rows.assign(who=rows["data"].map(name_of) + ", " + rows["profile"])
    _, frame = printed(published, "A8")
    frame = frame[frame["penalty on"].str.startswith("Top-GAP")]
    k = frame["penalty on"].str.extract(r"k = (\d+)")[0].astype(float) / LOCATIONS_OF_PAPER
    value = frame["mean of the map"].astype(float)
    of_paper = pd.DataFrame({"k": k, "value": value, "who": "published: CUB, ResNet-18"})
    return pd.concat([rows, of_paper], ignore_index=True)


def trade_off(table: pd.DataFrame, epsilon: float, variants: list[str]) -> pd.DataFrame:
    """Return robust accuracies under the paper's PGD, and `clean` ones, named by k and λ."""
    keys = ["profile", "data", "variant", "k", "strength", "seed"]
    own = select(table, metric="accuracy", test="own", variant=variants)
    pgd = {"attack": "pgd", "battery": "none", "counts": "unchanged", "epsilon": rounded(epsilon)}
    rows = select(table, metric="robust_accuracy", variant=variants, **pgd)
    rows = rows.merge(own[[*keys, "value"]].rename(columns={"value": "clean"}), on=keys)
    of_k = rows["k"].map(", k = {:g} h w".format).mask(~rows["variant"].str.contains("pool"), "")
    strength = rows["strength"].map(", λ = {:g}".format).mask(rows["strength"] == 0, "")
    return rows.assign(name=rows["variant"].map(TITLES) + of_k + strength)


def means(rows: pd.DataFrame, index: list[str], columns: str) -> pd.DataFrame:
    """Return means ± standard deviations over seeds, and the number of seeds."""
    if rows.empty:
        return pd.DataFrame({"": ["not run at the profiles that are shown"]})
    index = ["profile", "data", *index]
    groups = rows.groupby([*index, columns], sort=False)["value"]
    text = groups.agg(lambda v: f"{v.mean():.3f}" + (f" ± {v.std():.3f}" if len(v) > 1 else ""))
    wide = text.unstack(columns).fillna("–")
    wide["seeds"] = rows.groupby(index, sort=False)["seed"].nunique()
    wide = wide.reset_index().rename_axis(columns=None)
    for name in wide.select_dtypes("float"):
        wide[name] = wide[name].map("{:g}".format)
    renamed: dict[str, Any] = {"variant": TITLES, "chosen": {True: "yes", False: ""}}
    return wide.replace(renamed).assign(data=wide["data"].map(name_of))


def printed(published: Mapping[str, Any], number: str) -> tuple[str, pd.DataFrame]:
    """Return a table of the paper and its title."""
    entry = next(table for table in published["tables"] if table["number"] == number)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    words = {"nan": "–"} | ({True: "yes", False: "no"} if number == "7" else {})
    frame = frame.map(lambda v: f"{v:g}" if isinstance(v, float) else v).replace(words)
    return f"Table {number} of the paper: {entry['shows']}.", frame


def training_steps(file: Path = ROOT / "benchmarks" / "results" / "cpu.json") -> pd.DataFrame:
    """Return how much longer a training step with Top-GAP and L1 takes, with its quartiles."""
    rows = pd.DataFrame(json.loads(file.read_text())["rows"])
    rows = rows[(rows["benchmark"] == "Top-GAP") & rows["case"].str.startswith("training step")]
    case = rows["case"].str.removeprefix("training step, ").str.partition(":")[0]
    quartiles = rows["quartiles"].map(lambda ends: "{:.2f} to {:.2f}".format(*ends))
    return pd.DataFrame({"step": case, "times as long": rows["value"], "quartiles": quartiles})


def _drawn(result: Results, kind: str) -> tuple[str, dict[str, NDArray[Any]]]:
    """Return the last data set that has arrays of a kind, and its arrays."""
    data = [name.partition("|")[0] for name in result.arrays if f"|{kind}|" in name][-1]
    start = f"{data}|"
    return data, {n.removeprefix(start): a for n, a in result.arrays.items() if n.startswith(start)}


def _images(data: str, n: int) -> list[NDArray[Any] | None]:
    """Return the first test images of a data set, None for those that are not at hand."""
    try:
        return [image.numpy() for image in load_data(data).test.images[:n]]
    except ValueError:
        return [None] * n


def receptive_fields(result: Results, variants: list[str]) -> list[list[NDArray[Any] | None]]:
    """Return the receptive fields of variants by location, each scaled to its largest value."""
    _, arrays = _drawn(result, "erf")
    rows = [[arrays.get(f"erf|{v}|{location}") for location in LOCATIONS] for v in variants]
    return [[None if f is None else (255 * f / f.max()).astype(np.uint8) for f in r] for r in rows]


def map_rows(
    result: Results, titles: Mapping[str, str], per_row: int = 4
) -> tuple[list[list[NDArray[Any] | None]], list[list[str]]]:
    """Return images with their maps beside them, and their titles, in rows of a few maps.

    They are of the last data set that has a map of the first title's kind. An image that is not at
    hand is None.
    """
    data, arrays = _drawn(result, next(iter(titles)).partition("|")[0])
    labels = arrays["labels"]
    images = arrays["images"] if "images" in arrays else _images(data, len(labels))
    pictures, notes = [], []
    for n, (image, label) in enumerate(zip(images, labels, strict=True)):
        for start in range(0, len(titles), per_row):
            names = list(titles)[start : start + per_row]
            maps = [arrays[name][n] if name in arrays else None for name in names]
            pictures.append([image, *maps])
            notes.append([f"label {label}", *(titles[name] for name in names)])
    return pictures, notes
