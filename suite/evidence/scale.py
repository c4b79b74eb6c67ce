"""On what headlines rest: the data, how networks were trained, and how good they became."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from suite.data import source
from suite.evidence.names import name_of
from suite.evidence.report import readable
from suite.evidence.tables import select
from suite.units import Training

# Columns that tell apart how networks were trained.
KINDS = ("model", "variant", "method")


def trainings_of(units: Iterable[Any]) -> list[Training]:
    """Return the trainings among units, and those that other units are about, each once."""
    found = (item for unit in units for item in (unit, getattr(unit, "training", None)))
    return list({repr(item): item for item in found if isinstance(item, Training)}.values())


def scale(
    table: pd.DataFrame,
    where: Mapping[Any, Any],
    trainings: Sequence[Training],
    names: Mapping[str, str],
) -> str:
    """Say on what the verdicts of a panel rest.

    Args:
        table: rows of the chapter.
        where: profile, data and network of the panel.
        trainings: of the chapter at this profile.
        names: of the kinds of networks that the chapter compares.
    """
    data = where["data"].removesuffix("-cropped")
    here = [t for t in trainings if (t.data, t.network) == (data, where["network"])]
    cropped = [t for t in here if t.crop_padding]
    here = cropped if data != where["data"] else [t for t in here if t not in cropped] or here
    form = f" ({form})" if (form := _form(here)) else ""
    name, about = name_of(where["data"]), source(data).about
    about = about.removeprefix(f"{name}, ")
    words = [f"{name} ({about})", name_of(where["network"]) + form]
    short = []
    if here:
        number = max(training.n_train or 0 for training in here)
        of = f" on {number:,} training images" if number else " on all training images"
        epochs = sorted({training.cosine_epochs or training.epochs for training in here})
        short = [f"besides short trainings of {epochs[0]} epochs"] if len(epochs) > 1 else []
        words.append(f"{epochs[-1]} epoch{'s' * (epochs[-1] > 1)}{of}")
    accuracy = select(table, **where)
    if short and "panel" in accuracy:
        plain = select(accuracy, panel="strength", method="standard", metric="accuracy")["value"]
        short[0] += f" (standard training there: {plain.mean():.2f})" if len(plain) else ""
    # Where images have groups, accuracy over all of them has a name of its own.
    of_all = "accuracy" if (accuracy["metric"] == "accuracy").any() else "usual_accuracy"
    accuracy = accuracy[accuracy["metric"] == of_all]
    for name, value in {"main": True, "test": "own", "panel": "methods"}.items():
        if name in accuracy and (chosen := accuracy[name] == value).any():
            accuracy = accuracy[chosen]
    if "over_regularised" in accuracy:
        accuracy = accuracy[~accuracy["over_regularised"].astype(bool)]
    if len(accuracy):
        words.append(_accuracy(accuracy, names))
    if "t_alpha" in accuracy and np.isfinite(t := accuracy["t_alpha"].min()):
        text = f"without networks of α ≥ {t:.1e}, which classify too badly"
        words.append(text.replace("e+0", "e"))
    return ", ".join(words + short)


def _form(trainings: Sequence[Training]) -> str:
    """Say what options of the network all trainings share."""
    options = [
        {**t.network_options, **t.network_options.get("backbone_options", {})} for t in trainings
    ]
    first, *others = options or [{}]
    shared = {
        name: " + ".join(map(str, value)) if isinstance(value, list | tuple) else value
        for name, value in first.items()
        if name != "stem"
        and isinstance(value, str | int | list | tuple)
        and not isinstance(value, bool)
        and all(other.get(name) == value for other in others)
    }
    return readable(shared)


def _accuracy(rows: pd.DataFrame, names: Mapping[str, str]) -> str:
    """Say how good the networks are: of each kind that has a name, else of all."""
    kind = next((name for name in KINDS if name in rows), None)
    if kind and rows[kind].isin(list(names)).any():
        means = rows.groupby(kind)["value"].mean()
        each = [f"{means[key]:.2f} ({name})" for key, name in names.items() if key in means]
        return f"mean accuracy {', '.join(each)}"
    return f"{'median ' * (len(rows) > 1)}accuracy {rows['value'].median():.2f}"
