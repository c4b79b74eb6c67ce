"""At what scale a claim was tested: the paper's, a reduced one, or on data that stand in."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from suite.evidence.rules import NO_EFFECT
from suite.networks import NETWORKS
from suite.store import Record

PAPERS, REDUCED, STAND_IN, OURS = SCALES = ("paper's", "reduced", "stand-in", "ours")
AT = {PAPERS: "at the paper's scale", REDUCED: "at reduced scale", STAND_IN: "on stand-in data"}
AT |= {OURS: "in this book's comparison"}
# Columns that tell apart how networks were trained.
KINDS = ("model", "variant", "method")
# How networks were trained: the identity of each, and its `accuracy` where that was measured.
Trainings = Sequence[Mapping[str, Any]]
Claim = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """On what a paper worked.

    Args:
        data: the paper's data set, then copies of it: a part, re-encoded, of other resolution.
        network: see `suite.networks.NETWORKS` and `PRETRAINED`.
        options: of the network, those that decide its size.
        epochs: of the training; None for a network that is pretrained, or where none is stated.
        accuracy: on test images without a penalty, as the paper states it; NaN where it does not.
    """

    data: Sequence[str]
    network: str
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    accuracy: float = float("nan")

    def is_met_by(self, training: Mapping[str, Any]) -> bool:
        """Whether a network is at least as large, and trained at least as long, on all images."""
        options = training.get("network_options", {})
        options = {**options, **options.get("backbone_options", {})}
        defaults = {
            name: [*value] if isinstance(value := parameter.default, tuple) else value
            for network in (options.get("backbone", "resnet"), self.network)
            if network in NETWORKS
            for name, parameter in inspect.signature(NETWORKS[network]).parameters.items()
        }
        same = [(defaults | options).get(k) == v for k, v in self.options.items()]
        long = training.get("epochs", 0) >= (self.epochs or 0)
        return all(same) and long and training.get("n_train") is None


def trainings_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the networks that were trained for records, each once, with its accuracy if known.

    A training that was stopped early to look at it is part of the longer one.
    """
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        network = record.unit.get("training", record.unit)
        if not {"network", "data"} <= network.keys() or network.get("epochs") == 0:
            continue
        stage = ("epochs",) if "cosine_epochs" in network else ()
        key = str({name: value for name, value in network.items() if name not in stage})
        entry = found.setdefault(key, dict(network))
        entry |= {"epochs": max(entry["epochs"], network["epochs"])} if "epochs" in network else {}
        unit, whole = record.unit, network.get("epochs") == entry.get("epochs")
        if unit.get("metric") == "accuracy" and "data" not in unit.get("settings", {}) and whole:
            entry["accuracy"] = record.values.get("mean")
    return list(found.values())


def copies_of(settings: Sequence[Setting], data: str) -> set[str]:
    """Return the data sets that are a paper's data set, or copies of it."""
    return {name for setting in settings if data in setting.data for name in setting.data}


def scale_of(
    claim: Claim, settings: Sequence[Setting], where: tuple[str, str], trainings: Trainings
) -> tuple[str, float]:
    """Return the scale of a panel, of `SCALES`, and the accuracy that the paper states there.

    Args:
        claim: its `data_of_paper` are those on which the paper claims it; its `trained`, if there,
            has fields of the trainings that it rests on, and of other trainings nothing is asked.
        settings: of the paper; without any the comparison is this book's own.
        where: data and network of the panel.
        trainings: of its profile.
    """
    data, network = where[0].removesuffix("-cropped"), where[1]
    fits = [s for s in settings if data in s.data and {*s.data} & {*claim["data_of_paper"]}]
    fits = [setting for setting in fits if setting.network == network] or fits
    if not fits:
        return STAND_IN if settings else OURS, float("nan")
    trained = {"data": data, "network": network, **claim.get("trained", {})}
    here = [t for t in trainings if all(t.get(key) == value for key, value in trained.items())]
    full = [s for s in fits if s.data[0] == data and s.network == network]
    full = [s for s in full if here and all(map(s.is_met_by, here))]
    return (PAPERS, full[0].accuracy) if full else (REDUCED, fits[0].accuracy)


def word_at(verdict: str, scale: str) -> str:
    """Write a verdict; one that found nothing is written with its scale.

    >>> word_at("no effect", "reduced"), word_at("holds", "reduced")
    ('no effect at reduced scale', 'holds')
    """
    with_it = verdict == NO_EFFECT and scale in (REDUCED, STAND_IN)
    return f"{verdict} {AT[scale]}" if with_it else verdict


def drop_interpolated(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out rows that were interpolated between networks."""
    return rows[rows["against"].fillna("") == ""] if "against" in rows else rows
