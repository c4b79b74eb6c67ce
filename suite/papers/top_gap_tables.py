"""Tables and pictures of the Top-GAP chapter."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from suite.evidence import tables
from suite.evidence.names import name_of
from suite.papers.top_gap import TITLES

ATTACKS = {"pgd": "PGD", "auto_attack": "AutoAttack"}
STANDARD_STEPS = 100  # of APGD and FAB in AutoAttack
LOCATIONS_OF_PAPER = 56 * 56  # of the class maps of its ResNet-18, for images of 224 pixels


def select(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows with these values, of trainings that did not diverge.

    Names that are empty are missing in kept rows.
    """
    texts = [name for name in ("attack", "parts", "part", "counts") if name in table]
    filled = table[texts].astype(object).fillna("")
    return tables.select(table.assign(**filled), status="done", **values)


def attacks(table: pd.DataFrame, battery: str | list[str], **values: Any) -> pd.DataFrame:
    """Return clean accuracies and what attacks leave of predictions, with the `name` of each.

    Robust accuracy is the paper's (unchanged predictions), unless `values` say.
    """
    rows = select(
        table, metric=["accuracy", "robust_accuracy"], test="own", battery=battery, **values
    )
    rows = rows[rows["counts"].isin([values.get("counts", "unchanged"), ""])]
    names = rows["attack"].str.replace("_", " ") + " " + rows["steps"].map("{:.0f}".format)
    names = names.mask(rows["attack"] == "transfer", "transfer")
    fewer = rows["steps"].map(" of {:.0f} steps".format).mask(rows["steps"] == STANDARD_STEPS, "")
    names = names.mask(rows["attack"] == "auto_attack", "AutoAttack" + fewer)
    names = names.mask(rows["parts"] != "", rows["parts"])
    names = names.mask(rows["scale"] != 1, "logits × " + rows["scale"].map("{:g}".format))
    names += ", ε " + (255 * rows["epsilon"]).map("{:.3g}/255".format)
    return rows.assign(name=names.mask(rows["metric"] == "accuracy", "clean"))


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


def printed(published: Mapping[str, Any], number: str) -> tuple[str, pd.DataFrame]:
    """Return a table of the paper and its title."""
    entry = next(table for table in published["tables"] if table["number"] == number)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    words = {"nan": "–"} | ({True: "yes", False: "no"} if number == "7" else {})
    frame = frame.map(lambda v: f"{v:g}" if isinstance(v, float) else v).replace(words)
    return f"Table {number} of the paper: {entry['shows']}.", frame


def on_cifar(table: pd.DataFrame, published: Mapping[str, Any]) -> pd.DataFrame:
    """Return what the paper's Table 4 has, with AutoAttack, of CIFAR-10 here and there."""
    rows = attacks(table, ["none", "steps", "auto"], data="cifar10-jpeg", main=True)
    rows = rows[(rows["battery"] != "steps") | (rows["steps"] == 50)]
    names = {"clean": "clean", "pgd 20": "PGD-20", "pgd 50": "PGD-50", "AutoAttack": "AutoAttack"}
    attack = rows["name"].str.replace(r"( of \d+ steps)?, ε 8/255", "", regex=True)
    rows = rows.assign(name=attack.map(names)).dropna(subset="name")
    rows = rows.sort_values("name", key=lambda heads: heads.map([*names.values()].index))
    _, frame = printed(published, "4")
    paper = {
        f"paper: {row['method']}, {row['network']}": {
            name: float(row[name]) for name in ("PGD-20", "PGD-50", "clean") if row[name] != "–"
        }
        for _, row in frame.iterrows()
    }
    return tables.wide(rows, "variant", "name", TITLES, printed=paper)


def elsewhere(table: pd.DataFrame) -> pd.DataFrame:
    """Return what PGD and AutoAttack leave of three kinds of networks on other data."""
    kinds = ["none", "l1", "fpn+l1+pool"]
    rows = attacks(table, ["none", "auto"], main=True, variant=kinds, profile="workstation")
    rows = rows[(rows["attack"] == "auto_attack") | (rows["name"].str.startswith("pgd 20"))]
    rows = rows.sort_values("attack", ascending=False, kind="stable")
    radius = (255 * rows["epsilon"]).map(", {:.3g}/255".format)
    names = rows["data"].map(name_of) + ", " + rows["attack"].map(ATTACKS) + radius
    rows = rows.assign(name=names, head=rows["variant"].map(TITLES))
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
