"""Your network: what it looks at, compared with packaged networks."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from suite.data import class_names, load_data, source, wordnet_ids
from suite.errors import expected
from suite.evidence.names import name_of
from suite.evidence.quote import Value
from suite.evidence.render import render
from suite.evidence.statistics import Interval, difference, mean_interval, share_interval
from suite.evidence.tables import select
from suite.networks import pretrained_weights
from suite.networks.yours import is_own, own_network
from suite.papers.design import Arrays, Derived, Item, Plan, measurement, replace, settings_of
from suite.papers.high_order_saliency import SURE, UNSURE
from suite.units import Pretrained, Values

NAMES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_bytes())
DIALS: dict[str, dict[str, Any]] = NAMES["dials"]
MAPS: dict[str, str] = NAMES["maps"]
REFERENCE_IMAGES = "foolbox-imagenet"  # for the packaged networks
YOURS, REFERENCE = "yours", "reference"
LEAST = 1e-12  # curvature that has a logarithm
SQUARES = 7  # a side, at least; pixels of a square are inverted together
MOST_SQUARES = 400
SIDE = "pixels a side"
LANDSCAPE = 56  # pixels a side of a drawn landscape, at most
OPTIONS = ("weights", "random_weights", "size", "mean", "std")  # of a network of your own
LABELS = ("auto", "folders", "none")
PARTS = ("answer", "maps", "tested", "landscape", "steady", "advice")
LIKE = "no clear difference"
SHOWN = 5  # of the most and the least steady images, at most
ENDS = ["value", "low", "high"]
BAR = {"scale": (0.0, 2.0), "scale_label": "importance, mean square 1", "side": 2.2}
Row = dict[Any, Any]


class Subject(NamedTuple):
    """Your network with its images: labelled by its predictions and, if known, by true labels."""

    predicted: Pretrained
    labelled: Pretrained | None
    size: int
    why: str  # how labels are known, or why they are not


def subject_of(parameters: Values) -> Subject:
    """Return the network with its images and labels, checked.

    Raises:
        UsageError: see `own_network`; images are missing, or labels that were asked for.
    """
    p = SimpleNamespace(**parameters)
    options = {name: parameters[name] for name in OPTIONS if parameters[name]}
    if options and not is_own(p.network):
        name, value = options.popitem()
        raise expected(name, f"none for the packaged {p.network!r}", value)
    about: Any = (own_network if is_own(p.network) else pretrained_weights)(p.network, **options)
    options = about.options if is_own(p.network) else {}
    size = options.get("size") or about.size
    name = _data_name(p, size)
    data = load_data(name)
    images = data.test.images[: p.n_images].float() / 255 if is_own(p.network) else ()
    if not all(about.network(image[None]).isfinite().all() for image in images):
        raise expected(p.network, "finite logits of each image", "infinity or NaN")
    labels, why = _labels(p.labels, data.classes, about.classes)
    common: dict[str, Any] = {"data": name, "network": p.network, "options": options}
    common["n_images"] = min(p.n_images, len(data.test.images))
    labelled = None if labels is None else Pretrained(**common, labels=labels or None)
    return Subject(Pretrained(**common, labels="predicted"), labelled, size, why)


def _data_name(p: SimpleNamespace, size: int) -> str:
    """Return the name of the data set of the images, at the size that the network takes."""
    folder = Path(p.images.removeprefix("imagefolder:"))
    table = "" if p.labels in LABELS else p.labels
    if "/" in p.images:
        if folder.is_dir():
            return f"shown:{size}|{p.n_images}|{table}|imagefolder:{folder.absolute()}"
        raise expected("images", "a folder, or a data set by name", f"{p.images}, not there")
    if table:
        raise expected("labels", f"{', '.join(LABELS)}, as {p.images} is no folder", table)
    return p.images if source(p.images).shape == (3, size, size) else f"resized:{p.images}:{size}"


def _labels(choice: str, names: tuple[str, ...], classes: int) -> tuple[list[int] | None, str]:
    """Return the network's class of each class of the images, and how it is known.

    The classes are None where they are unknown, and empty where both have the same classes.
    """
    if choice == "none":
        return None, "labels were not asked for"
    if len(names) == classes and not all(map(str.isdigit, names)):
        return [], "labels: the classes of the network, in its order"
    imagenet = [*class_names(), *wordnet_ids()] if classes == len(class_names()) else []
    known = {name: n % classes for n, name in enumerate(imagenet)}
    known |= {name: int(name) for name in names if name.isdigit() and int(name) < classes}
    if known.keys() >= set(names):
        return [known[name] for name in names], "labels: by name"
    why = f"{len(names)} classes of images ({', '.join(names[:3])}), {classes} of the network"
    if choice != "auto":
        raise expected("labels", "folders named as classes of the network, or as many", why)
    return None, f"no labels: {why}"


def plan(parameters: Values) -> Plan:
    """Return the units of your network and of the reference networks.

    Reference networks are left out where their data have fewer images.
    """
    p, subject = SimpleNamespace(**parameters), subject_of(parameters)
    items = [*_dials(p, subject.predicted, subject.labelled, subject.size, YOURS)]
    enough = p.n_images <= len(load_data(REFERENCE_IMAGES).test.images)
    for name in p.references.split() if enough else ():
        common: Any = {"data": REFERENCE_IMAGES, "network": name, "n_images": p.n_images}
        pair = Pretrained(**common, labels="predicted"), Pretrained(**common)
        items += _dials(p, *pair, pretrained_weights(name).size, REFERENCE)
    count = subject.predicted.n_images or p.n_images
    unit, few = partial(measurement, subject.predicted), min(p.n_shown, count)
    arrays = {"landscape|network": unit("importance_landscape", n_images=count, n_draws=1)}
    arrays["landscape|its paths"] = unit("paths_landscape")
    arrays |= {f"maps|{t}": unit("drawn_maps", saliency=s, n_images=few) for s, t in MAPS.items()}
    return Plan([*items, *(Item(measure, keep=keep) for keep, measure in arrays.items())])


def _dials(
    p: SimpleNamespace, predicted: Pretrained, labelled: Pretrained | None, size: int, who: str
) -> Iterator[Item]:
    """Yield the units of the dials of a network, with the labels of their rows."""
    patch = max(side for side in range(1, max(size // SQUARES, 1) + 1) if size % side == 0)
    for name, dial in DIALS.items():
        network = labelled if dial.get("labelled") else predicted
        settings = settings_of(dial, replace(p, patch=patch))
        settings["n_images"] = min(getattr(p, dial["images"]), predicted.n_images or p.n_images)
        if network and (size // settings.get("patch", size)) ** 2 <= MOST_SQUARES:
            labels = {"dial": name, "who": who, "name": predicted.network}
            labels["alike"] = json.dumps(settings | {SIDE: size}, sort_keys=True)
            yield Item(measurement(network, dial["metric"], **settings), labels, per_image=True)


def shrink(parameters: Values, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that figures draw: landscapes as means over squares."""
    if (landscape := tensors.get("landscape")) is None:
        return {**tensors}
    side = min(LANDSCAPE, len(landscape))
    return {"landscape": adaptive_avg_pool2d(landscape[None], side)[0].half()}


def derive(parameters: Values, rows: pd.DataFrame, arrays: Arrays) -> Derived:
    """Return a row for each network and dial, with the interval over images."""
    keys = ["dial", "who", "name", "alike", "data", "network"]
    groups = rows.groupby(keys, sort=False)
    estimates = [dict(zip(keys, key)) | _estimate(part) for key, part in groups]
    arrays["steady"] = select(rows, dial="steady", who=YOURS)["value"].to_numpy(float)
    return pd.DataFrame(estimates).assign(seed=0, status="done"), arrays


def _estimate(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the mean of a dial over images, with its interval; for curvature, of the logarithm."""
    about, values = DIALS[rows["dial"].iloc[0]], rows["value"].to_numpy(float)
    undefined = int((~np.isfinite(values)).sum())
    if "sure" in about:
        p = rows["confidence"].to_numpy(float)
        values = values[p >= SURE if about["sure"] else p <= UNSURE]
        values = np.log10(np.maximum(values, LEAST))
    if about.get("pixels"):
        values = np.exp(values) / json.loads(rows["alike"].iloc[0])[SIDE] ** 2
    values, interval = values[np.isfinite(values)], Interval(np.nan)
    if len(values):
        shares = share_interval(int(values.sum()), len(values)) if about.get("shares") else None
        interval = shares or mean_interval(values * (-1 if about.get("turned") else 1))
    return dict(zip(("value", "low", "high", "n"), interval)) | {"undefined": undefined}


def page(subject: Subject, entries: Sequence[Row], arrays: Arrays) -> tuple[Row, Row]:
    """Return the pictures of the page, and its sentences by part of the template."""
    values: Row = {"subject": subject, "entries": entries, "shown": pictures(subject, arrays)}
    return values["shown"], {part: write(part, **values) for part in PARTS}


def write(part: str, **values: Any) -> str:
    """Render a part of the template."""
    common = {"advice": NAMES["advice"], "name_of": name_of, "others": REFERENCE_IMAGES}
    return render(Path(__file__).with_suffix(".md.jinja"), part=part, **common, **values).strip()


def card(table: pd.DataFrame, profile: str, why: str) -> list[dict[str, Any]]:
    """Return the entry of each dial on the card.

    Args:
        table: rows of this run, then of kept runs.
        profile: of this run.
        why: the reason why there are no labels.
    """
    yours = select(table, profile=profile, who=YOURS)
    others = table[(table["who"] == REFERENCE) & (table["name"] != yours["name"].iloc[0])]
    others = others.dropna(subset=ENDS).drop_duplicates(["dial", "name"])
    rows = {row["dial"]: row for row in yours.to_dict("records")}
    return [_entry(n, rows.get(n), others[others["dial"] == n], why) for n in DIALS]


def _entry(name: str, row: Row | None, others: pd.DataFrame, why: str) -> dict[str, Any]:
    """Return the entry of a dial, from the row of your network and those of others."""
    about = DIALS[name]
    entry: dict[str, Any] = {"name": name, "title": about["title"], "what": about["what"]}
    entry |= {"text": "–", "n": 0, "dots": [], "word": "", "kind": "none"}
    if row is None or not np.isfinite(row["value"]):
        return entry | {"reason": write("reason", about=about, own=row, why=why)}
    interval, rows = _interval(row), others.to_dict("records")
    alike = [other for other in rows if other["alike"] == row["alike"]]
    ends = np.nan_to_num(interval[:3], nan=interval.estimate)
    entry |= {"text": text(row), "n": row["n"], "own": ends}
    entry["dots"] = [(r["value"], name_of(r["name"]), text(r), r in alike) for r in rows]
    if not alike or np.isnan(interval.low):
        settings = [json.loads(r["alike"]) for r in (*rows[:1], row)]
        return entry | {"reason": write("difference", settings=settings, alike=alike)}
    gaps = [difference(interval, _interval(other)) for other in alike]
    low, high = all(gap.high < 0 for gap in gaps), all(gap.low > 0 for gap in gaps)
    if (low or high) and "better" in about:
        entry["kind"] = "good" if high == (about["better"] > 0) else "part"
    return entry | {"word": about["low"] if low else about["high"] if high else LIKE}


def _interval(row: Row) -> Interval:
    return Interval(*(row[end] for end in ENDS))


def text(row: Row) -> str:
    """Format the value of a row as its dial says; curvature from its logarithm."""
    about, ends = DIALS[row["dial"]], np.array(_interval(row)[:3], float)
    return f"{Value(*(10**ends if 'sure' in about else ends)):{about['form']}}"


def pictures(subject: Subject, arrays: Arrays) -> dict[str, dict[str, Any]]:
    """Return the pictures of the page: maps by method, landscapes, images by steadiness."""
    images = load_data(subject.predicted.data).test.images.numpy()
    maps, landscapes = (
        {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
        for kind in ("maps|", "landscape|")
    )
    changes = arrays["steady"]
    order = np.argsort(changes)[: np.isfinite(changes).sum() or None]
    half = min(SHOWN, (len(order) + 1) // 2)
    ranked = np.stack([order[:half], order[::-1][:half]])
    notes = [[f"{changes[n]:.2f}" for n in rows] for rows in ranked]
    return {
        "maps": {t: [[*itertools.chain(*zip(images, m))]] for t, m in maps.items()},
        "landscape": {"rows": [[*landscapes.values()]], "titles": [*landscapes], **BAR},
        "steady": {"rows": images[ranked], "notes": notes},
    }
