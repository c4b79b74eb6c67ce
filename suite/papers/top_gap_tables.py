"""Tables and pictures of the Top-GAP chapter."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suite.data import load_data
from suite.evidence import tables
from suite.evidence.names import name_of
from suite.evidence.results import Results
from suite.papers.top_gap import LOCATIONS, TITLES, VARIANTS, rounded

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


def ablation(
    table: pd.DataFrame, epsilons: list[float], variants: list[str] = VARIANTS
) -> pd.DataFrame:
    """Return clean accuracy of the variants and, by its radius, what each attack leaves.

    Robust accuracy is the paper's (unchanged predictions); `what` is what the column is called.
    """
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


def means(rows: pd.DataFrame, index: list[str], columns: str) -> pd.DataFrame:
    """Return means ± standard deviations over seeds, and the number of seeds."""
    if rows.empty:
        return pd.DataFrame({"": ["not run at the profiles that are shown"]})
    index = ["profile", "data", *index]
    groups = rows.groupby([*index, columns], sort=False)["value"]
    text = groups.agg(
        lambda v: f"{v.mean():.3f}" + (f" ±\u00a0{v.std():.3f}" if len(v) > 1 else "")
    )
    wide = text.unstack(columns).fillna("–")
    wide["seeds"] = rows.groupby(index, sort=False)["seed"].nunique()
    wide = wide.reset_index().rename_axis(columns=None)
    for name in wide.select_dtypes("float"):
        wide[name] = wide[name].map("{:g}".format)
    renamed: dict[str, Any] = {"variant": TITLES, "chosen": {True: "yes", False: ""}}
    wide = wide.replace(renamed).assign(data=wide["data"].map(name_of))
    once = wide.groupby("data")["profile"].nunique().eq(1).all()
    return wide.drop(columns="profile") if once else wide


def titled(wide: pd.DataFrame) -> Any:
    """Return a table to show: the name of its data set, if it has one alone, is its title."""
    if "data" not in wide or wide["data"].nunique() > 1:
        return wide.style.hide()
    return wide.drop(columns="data").style.hide().set_caption(wide["data"].iloc[0])


def printed(published: Mapping[str, Any], number: str) -> tuple[str, pd.DataFrame]:
    """Return a table of the paper and its title."""
    entry = next(table for table in published["tables"] if table["number"] == number)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    words = {"nan": "–"} | ({True: "yes", False: "no"} if number == "7" else {})
    frame = frame.map(lambda v: f"{v:g}" if isinstance(v, float) else v).replace(words)
    return f"Table {number} of the paper: {entry['shows']}.", frame


def on_cifar(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Return what the paper's Table 4 has, with AutoAttack, of CIFAR-10 here and there."""
    main = {"data": "cifar10-jpeg", "main": True}
    clean = select(table, metric="accuracy", test="own", **main).assign(name="clean")
    rows = select(table, metric="robust_accuracy", counts="unchanged", **main)
    rows = rows[rows["epsilon"] == rounded(8 / 255)]
    twenty = rows[(rows["attack"] == "pgd") & (rows["battery"] == "none")]
    fifty = rows[(rows["battery"] == "steps") & (rows["steps"] == 50)]
    auto = rows[rows["battery"] == "auto"].assign(name="AutoAttack")
    parts = [clean, twenty.assign(name="PGD-20"), fifty.assign(name="PGD-50"), auto]
    _, frame = printed(published, "4")
    names = {"PGD-20": "PGD-20", "PGD-50": "PGD-50", "clean": "clean"}
    paper = {
        f"paper: {row['method']}, {row['network']}": {
            name: float(row[name]) for name in names if row[name] != "–"
        }
        for _, row in frame.iterrows()
    }
    return tables.wide(pd.concat(parts), "variant", "name", TITLES, printed=paper)


def elsewhere(table: pd.DataFrame) -> pd.DataFrame:
    """Return what PGD and AutoAttack leave of three kinds of networks on other data."""
    rows = select(table, metric="robust_accuracy", counts="unchanged", main=True)
    rows = rows[rows["variant"].isin(["none", "l1", "fpn+l1+pool"])]
    pgd = rows[(rows["attack"] == "pgd") & (rows["battery"] == "none") & (rows["steps"] == 20)]
    rows = pd.concat([pgd, rows[rows["battery"] == "auto"]])
    rows = rows[rows["profile"] == "workstation"]
    radius = (255 * rows["epsilon"]).map(", {:.3g}/255".format)
    names = rows["data"].map(name_of) + ", " + rows["attack"].map(ATTACKS) + radius
    heads = rows["variant"].map(TITLES)
    rows = rows.assign(name=names, head=heads)
    return tables.wide(rows, "name", "head", dict(zip(names, names)))


def printed_parts(published: Mapping[str, Any]) -> dict[str, float]:
    """Return accuracy under FGSM by variant, of the paper's Table 7."""
    entry = next(table for table in published["tables"] if table["number"] == "7")
    names = ("fpn", "l1", "pool")
    return {
        "+".join(n for n, on in zip(names, row[:3]) if on) or "none": row[4]
        for row in entry["rows"]
    }


def training_steps(benchmark: Mapping[str, Any]) -> pd.DataFrame:
    """Return how much longer a training step with Top-GAP and L1 takes, with its quartiles."""
    rows = pd.DataFrame(benchmark["rows"])
    rows = rows[(rows["benchmark"] == "Top-GAP") & rows["case"].str.startswith("training step")]
    case = rows["case"].str.removeprefix("training step, ").str.partition(":")[0]
    quartiles = rows["quartiles"].map(lambda ends: "{:.2f} to {:.2f}".format(*ends))
    return pd.DataFrame({"step": case, "times as long": rows["value"], "quartiles": quartiles})


def _data_with(result: Results, kind: str) -> dict[str, dict[str, NDArray[Any]]]:
    """Return the arrays of each data set that has some of a kind, in the order of its rows."""
    data = {name.partition("|")[0] for name in result.arrays if f"|{kind}|" in name}
    places = {name: n for n, name in enumerate(result.frame["data"].unique())}
    return {
        d: {n.removeprefix(f"{d}|"): a for n, a in result.arrays.items() if n.startswith(f"{d}|")}
        for d in sorted(data, key=places.__getitem__)
    }


def _images(data: str, n: int) -> list[NDArray[Any] | None]:
    """Return the first test images of a data set, None for those that are not at hand."""
    try:
        return [image.numpy() for image in load_data(data).test.images[:n]]
    except ValueError:
        return [None] * n


def receptive_fields(result: Results, variants: list[str]) -> dict[str, Any]:
    """Return what `picture_grid` takes: receptive fields of variants by location.

    Each is scaled to its largest value. A row is a data set.
    """
    names = {f"erf|{v}|{place}": f"{TITLES[v]}, {place}" for v in variants for place in LOCATIONS}
    found = _data_with(result, "erf")
    rows = [[arrays.get(name) for name in names] for arrays in found.values()]
    rows = [[None if f is None else (255 * f / f.max()).astype(np.uint8) for f in r] for r in rows]
    return {"rows": rows, "titles": [*names.values()], "labels": [*map(name_of, found)]}


def map_rows(result: Results, titles: Mapping[str, str]) -> dict[str, Any]:
    """Return what `picture_grid` takes: images with their maps beside them.

    They are of the data sets that have most of these maps, the first one's kind among them. An
    image that is not at hand is None.

    Args:
        result: of a profile.
        titles: of the columns, by the names of maps.
    """
    found = _data_with(result, next(iter(titles)).partition("|")[0])
    most = max(len(titles.keys() & arrays) for arrays in found.values())
    rows, labels = [], []
    for data, arrays in found.items():
        if len(titles.keys() & arrays) < most:
            continue
        images = arrays["images"] if "images" in arrays else _images(data, len(arrays["labels"]))
        for n, (image, label) in enumerate(zip(images, arrays["labels"], strict=True)):
            rows.append([image, *(arrays[name][n] if name in arrays else None for name in titles)])
            labels.append(f"label {label}")
    return {"rows": rows, "titles": ["image", *titles.values()], "labels": labels}
