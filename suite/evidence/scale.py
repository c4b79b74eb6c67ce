"""The scale at which a claim was tested: the paper's, a reduced one, or on stand-in data."""

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
# Columns that identify a way of training.
KINDS = ("model", "variant", "method")
# The identity of each trained network, with its `accuracy` where it was measured.
Trainings = Sequence[Mapping[str, Any]]
Claim = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """Data and network of a paper.

    Args:
        data: the data set, then its copies: a part, re-encoded, or of another resolution.
        network: see `suite.networks.NETWORKS` and `PRETRAINED`.
        options: of the network, those that decide its size.
        epochs: of the training; None if the network is pretrained or the paper states none.
        accuracy: on test images without a penalty, as the paper states it, else NaN.
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
    """Return each trained network of records once, with its accuracy if it was measured.

    A training that was stopped early for a measurement is part of the longer one.
    """
    trainings: dict[str, dict[str, Any]] = {}
    for record in records:
        unit, network = record.unit, record.unit.get("training", record.unit)
        if not {"network", "data"} <= network.keys() or network.get("epochs") == 0:
            continue
        stage = ("epochs",) if "cosine_epochs" in network else ()
        key = str({name: value for name, value in network.items() if name not in stage})
        entry = trainings.setdefault(key, dict(network))
        entry |= {"epochs": max(entry["epochs"], network["epochs"])} if "epochs" in network else {}
        is_accuracy = unit.get("metric") == "accuracy" and "data" not in unit.get("settings", {})
        if is_accuracy and network.get("epochs") == entry.get("epochs"):
            entry["accuracy"] = record.values.get("mean")
    return list(trainings.values())


def copies_of(settings: Sequence[Setting], data: str) -> set[str]:
    """Return a data set of a paper and its copies."""
    return {name for setting in settings if data in setting.data for name in setting.data}


def scale_of(
    claim: Claim, settings: Sequence[Setting], where: tuple[str, str], trainings: Trainings
) -> tuple[str, float]:
    """Return the scale of a panel, one of `SCALES`, and the accuracy that the paper states.

    Args:
        claim: with `data_of_paper`, the data of the claim, and optionally `trained`, fields that
            select the trainings of the claim.
        settings: of the paper; a comparison of this book has none.
        where: data and network of the panel.
        trainings: of the profile of the panel.
    """
    data, network = where[0].removesuffix("-cropped"), where[1]
    fits = [s for s in settings if data in s.data and {*s.data} & {*claim["data_of_paper"]}]
    fits = [setting for setting in fits if setting.network == network] or fits
    if not fits:
        return STAND_IN if settings else OURS, float("nan")
    fields = {"data": data, "network": network, **claim.get("trained", {})}
    trainings = [training for training in trainings if fields.items() <= training.items()]
    for setting in fits if trainings else ():
        same = setting.data[0] == data and setting.network == network
        if same and all(map(setting.is_met_by, trainings)):
            return PAPERS, setting.accuracy
    return REDUCED, fits[0].accuracy


def word_at(verdict: str, scale: str) -> str:
    """Write a verdict; *no effect* is written with its scale.

    >>> word_at("no effect", "reduced"), word_at("holds", "reduced")
    ('no effect at reduced scale', 'holds')
    """
    limited = verdict == NO_EFFECT and scale in (REDUCED, STAND_IN)
    return f"{verdict} {AT[scale]}" if limited else verdict


def drop_interpolated(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop the rows that were interpolated between networks."""
    return rows[rows["against"].fillna("") == ""] if "against" in rows else rows
