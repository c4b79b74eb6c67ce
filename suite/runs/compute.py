"""`compute`: read units from the store or the kept results, compute the rest, return a table."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd

from suite.data import load_data, source
from suite.errors import RunFailed, UsageError, expected
from suite.networks import pretrained
from suite.papers import measure, top_gap_measures
from suite.papers.marginal_density_measures import check_other_images
from suite.runs.code import Sources, find_other_code
from suite.runs.execute import Failure, Job, describe, keys_of
from suite.runs.executors import Resources, run_jobs
from suite.store import Kept, Layers, Record, Store, kept_layer
from suite.training import loop
from suite.training.evaluated import images_needed, select_test_split
from suite.training.folds import data_of
from suite.units import Measurement, Network, Pretrained, Unit, training_of

# Columns that a row has only if its training has the setting.
RARE = """group_dro balance_groups crop_padding flip zoom cosine_epochs decay_epochs label_smoothing
folds swap_halves input_noise fixed_statistics clip precision""".split()


def compute(
    units: Iterable[Unit],
    *,
    store: Store | None = None,
    kept: Kept | None = None,
    resources: Resources | None = None,
    force: bool = False,
    checkpoint_seconds: float = 20.0,
) -> pd.DataFrame:
    """Compute units, or read them from the store, and return a tidy table.

    Args:
        units: trainings and measurements.
        store: results of this machine; default: `Store()`.
        kept: results for units that the store lacks; default: those of the project, or none if
            REGLIB_FRESH is set.
        resources: device and processes; default: from the environment.
        force: also compute stored units.
        checkpoint_seconds: least time between two checkpoints of a training.

    Returns:
        One row for each unit, in their order. Its columns are the settings (`PENALTY_strength` for
        that of a penalty, `metric_NAME` for a setting that training and metric share), `metric`
        ("training_loss" for a training), `value` (mean over images), `std`, `n` (images with a
        value), `undefined` (images without), `status` ("done" or "diverged"), `seconds`, `key`.

    Raises:
        UsageError: a unit asks for something unknown or data are missing; nothing was computed.
        RunFailed: some units failed; all others are stored.
    """
    units = list(units)
    check(units)
    store, kept = store or Store(), kept or kept_layer()
    resources = resources or Resources.from_environment()
    keys = keys_of(units, kept.fingerprints if kept else {})
    n_reports = len(store.reports)
    records = {} if force else Layers(store, kept).read_all(dict.fromkeys(keys))
    sources, by_key = Sources(), dict(zip(keys, units))
    refused, code_reports = find_other_code(records, by_key, sources)
    records = {name: record for name, record in records.items() if name not in refused}
    missing = {name: unit for name, unit in by_key.items() if name not in records}
    errors = []
    if missing:
        _check_with_data(missing.values())
        store.clean()
        groups = _group(missing.values(), resources.resolve_jobs())
        shared = str(store.folder.resolve()), resources.resolve_device(), force, checkpoint_seconds
        jobs = [Job(group, *shared, resources.double_backward) for group in groups]
        errors = run_jobs(jobs, resources, store)
        computed = store.read_all(missing)
        refused, _ = find_other_code(computed, by_key, sources)
        records |= {name: computed[name] for name in computed.keys() - refused}
    reports = [*code_reports, *store.reports[n_reports:], *(kept.reports if kept else ())]
    for report in dict.fromkeys(reports):
        print(report)
    if errors:
        name, message, trace = errors[0]
        why = f"units that failed: {len(errors)}; all others are stored. The first: {name}: "
        why += f"{message}{_absent_packages(errors)}\n\nTraceback in the worker:\n{trace}"
        raise RunFailed(why)
    if absent := [unit for name, unit in missing.items() if name not in records]:
        why = f"units that were computed but are not in the store: {len(absent)}, the first: "
        why += f"{describe(absent[0])}; do the workers see the same store folder and the same "
        raise RunFailed(f"{why}data, and run the same code?")
    return table(units, keys, records)


def table(units: Iterable[Unit], keys: Iterable[str], stored: Mapping[str, Record]) -> pd.DataFrame:
    """Return the table of `compute`."""
    return pd.DataFrame([_row(unit, name, stored[name]) for unit, name in zip(units, keys)])


def check(units: Iterable[Unit]) -> None:
    """Check all names in units before any work; units that differ only in their seed once.

    Raises:
        UsageError: a name is unknown.
    """
    networks_by_name: dict[str, Network] = {}
    measurements: dict[str, Measurement] = {}
    for unit in units:
        network = training_of(unit)
        if isinstance(network, Pretrained) and not isinstance(unit, Measurement):
            raise UsageError("a Pretrained is trained already: expected measurements of it")
        if network is unit and not getattr(network, "epochs", 1):
            raise UsageError("epochs=0 trains nothing: expected measurements of such a network")
        networks_by_name.setdefault(str({**network.identity, "seed": 0}), network)
        if isinstance(unit, Measurement):
            measurements.setdefault(unit.metric + str(unit.settings), unit)
    for network in networks_by_name.values():
        source(network.data)
        if not isinstance(network, Pretrained):
            loop.check(network)
        elif not network.options:  # a network of your own was checked when it was made
            pretrained.pretrained_weights(network.network)
    for measurement in measurements.values():
        measure.check(measurement)


def _check_with_data(units: Iterable[Unit]) -> None:
    """Check that there are enough images, and that the networks take them.

    Raises:
        UsageError: there are too few images, a network does not take their shape, their labels or
            an option, a metric does not take its class maps or masks, or out-of-distribution images
            are those of the training.
    """
    # Folds of a data set come one after another, since few are cached.
    units = sorted(units, key=lambda u: (training_of(u).data, getattr(training_of(u), "fold", 0)))
    metrics, built = defaultdict(set), set()
    for unit in units:
        if isinstance(unit, Measurement):
            name = unit.settings.get("data", unit.training.data)
            data = data_of(unit.training)
            tested = load_data(name) if "data" in unit.settings else data
            labelled = unit.metric not in measure.WITHOUT_LABELS
            select_test_split(data, tested, name, images_needed(**unit.settings), labelled=labelled)
            if not labelled:
                check_other_images(data, tested, unit.training.data, name)
            metrics[_architecture(unit.training)].add(unit.metric)
    for network in map(training_of, units):
        data = data_of(network)
        if isinstance(network, Pretrained):
            pretrained.check_weights(network.network)
            pretrained.network_inputs(network.network, data.test.images[:1])
            continue
        n_train = len(data.train.labels)
        if n_train == 0:
            why = f"data set {network.data!r}: expected images to train on, got none; it can "
            why += "only be shown to a Pretrained. Images of your own to train on are laid out as "
            raise UsageError(f"{why}FOLDER/train/CLASS/* and FOLDER/test/CLASS/*")
        if network.n_train is not None and network.n_train > n_train:
            most = f"at most {n_train} for the training split of {network.data!r}"
            raise expected("n_train", most, network.n_train)
        if (architecture := _architecture(network)) not in built:
            initial = loop.initial_network(network, data)
            top_gap_measures.check_network(initial, network, data, metrics[architecture])
            built.add(architecture)


def _architecture(network: Network) -> tuple[str, str, str]:
    return network.data, network.network, str(getattr(network, "network_options", {}))


def _group(units: Iterable[Unit], jobs: int) -> list[list[Unit]]:
    """Group units by training, unless that leaves processes without work.

    Trainings that differ only in length share a group: the longest gives them all. A pretrained
    network, which loads quickly, has a group for each selection of images.

    A single process finishes one seed after another, so that results are comparable when time is
    up. Trainings on a part of their data, on which no headline rests, come last. With several
    processes, comparisons of two networks come last, when both networks are trained.
    """
    groups: dict[str, list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: _sort_key(unit, alone=jobs == 1)):
        name = str({**training_of(unit).identity, "epochs": None}) + str(_compares(unit))
        if isinstance(unit, Measurement) and isinstance(unit.training, Pretrained):
            name += str([unit.settings.get(part) for part in ("n_images", "first", "step")])
        groups[name].append(unit)
    step = 1 if len(groups) >= jobs else jobs
    return [group[n::step] for group in groups.values() for n in range(min(step, len(group)))]


def part_of(units: Sequence[Unit], number: int, count: int) -> list[Unit]:
    """Return part `number`, from 1, of `count`; the units of a training are in one part."""
    return [unit for group in _group(units, 1)[number - 1 :: count] for unit in group]


def _absent_packages(errors: Sequence[Failure]) -> str:
    """List the packages that are not installed, each with its number of units and an example."""
    units = defaultdict(list)
    for unit, message, _ in errors:
        for package in re.findall(r"No module named '(\w+)", message):
            units[package].append(unit)
    lines = (f"{p} is not installed: {len(u)} units, such as {u[0]}" for p, u in units.items())
    return "".join(f"\n{line}" for line in lines)


def _sort_key(unit: Unit, *, alone: bool) -> tuple[Any, ...]:
    network = training_of(unit)
    turn = getattr(network, "n_train", None) is not None, getattr(network, "seed", 0)
    return (*turn, _compares(unit)) if alone else (_compares(unit), *turn)


def _compares(unit: Unit) -> bool:
    """Whether a measurement compares its network with another."""
    settings = getattr(unit, "settings", {}).values()
    return any(isinstance(value, Mapping) and "unit" in value for value in settings)


def _row(unit: Unit, name: str, record: Record) -> dict[str, Any]:
    row = _training_columns(training_of(unit))
    n, std = row.get("n_train"), record.values.get("std")
    if isinstance(unit, Measurement):
        settings = {f"metric_{k}" if k in row else k: v for k, v in unit.settings.items()}
        row, n = row | {"metric": unit.metric, **settings}, record.values.get("n")
    else:
        row["metric"] = "training_loss"
    row |= {"value": record.value, "std": math.nan if std is None else std, "n": n}
    row |= {"undefined": record.values.get("undefined", 0), "status": record.status}
    return row | {"seconds": record.provenance["seconds"], "key": name}


def _training_columns(unit: Network) -> dict[str, Any]:
    row: dict[str, Any] = {spec.name: getattr(unit, spec.name) for spec in fields(unit)}
    if isinstance(unit, Pretrained):
        return {"data": unit.data, "network": unit.network}
    row |= row.pop("network_options")
    for penalty, settings in row.pop("penalties").items():
        row |= {f"{penalty}_{name}": value for name, value in settings.items()}
    row |= {f"optimizer_{k}": value for k, value in row.pop("optimizer_options").items()}
    if not row["folds"]:
        del row["fold"]
    return {k: v for k, v in row.items() if k not in RARE or (v and v != "float32")}
