"""Tables of the measurements, for the pages of the book."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from suite.evidence.html import badge
from suite.evidence.quote import Value

RESULTS = Path(__file__).parent / "results"
LANDSCAPE = ": landscape penalty in each 10th step / plain, channels-last"
FORMS = ("naive", "stable", "efficient", "logsumexp", "gradients of all logits")
NATURAL = "as a user has it"
WAYS = {"fast": "fast view", "stock": "stock autograd"}
STEP = ["panel", "method", "network", "ratio", "low", "high"]


def load(name: str) -> dict[str, Any] | None:
    """Load the results of a device (cpu, cuda) or of architectures; None if there are none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def heading(results: Mapping[str, Any]) -> str:
    """Return a heading with machine, threads, date and version of results."""
    machine = f"{results['device']}, {results['threads']} threads, {results['date']}"
    return f"**{machine}**, PyTorch {results['versions']['torch']}:"


def steps(results: Mapping[str, Any] | None) -> pd.DataFrame:
    """Return rows of penalised steps as a user has them, two a network, for `suite.plots.ratios`.

    `times` is the time with stock autograd over that with the fast view; `word` says which is
    faster.
    """
    cases = {row["case"]: row for row in results["rows"]} if results else {}
    rows = []
    for network in dict.fromkeys(case.partition(":")[0] for case in cases if NATURAL in case):
        stock, fast = (cases[f"{network}: {way}, {NATURAL}"] for way in ("stock", "fast"))
        title = network.partition(",")[0]
        (low, high), (first, last) = stock["quartiles"], fast["quartiles"]
        times = {"times": stock["value"] / fast["value"], "word": _word(low / last, high / first)}
        for way, name in WAYS.items():
            row = cases[f"{network}: {NATURAL}, {way} / plain"]
            ends = dict(zip(("low", "high"), row["quartiles"], strict=True))
            about = {"panel": "steps", "method": title, "network": name, "ratio": row["value"]}
            rows.append(about | ends | times)
    return pd.DataFrame(rows, columns=[*STEP, "times", "word"])


def timm(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return rows of architectures, largest gain first, with `times` and `word` as in `steps`."""
    rows = pd.DataFrame(results["rows"]).sort_values("stock_over_fast", ascending=False)
    words = [_word(*quartiles) for quartiles in rows.quartiles]
    names = {"architecture": "method", "stock_over_fast": "times"}
    return rows.rename(columns=names).assign(word=words)


def _word(low: float, high: float) -> str:
    return "faster" if low > 1 else "slower" if high < 1 else "no clear difference"


def summary(rows: pd.DataFrame) -> Value:
    """Return the most frequent word and its number of networks, as a value for sentences."""
    if rows.empty:
        return Value()
    by_network = rows.drop_duplicates("method").word
    words = by_network.value_counts()
    return Value(float(words.iloc[0]), n=len(by_network), word=str(words.index[0]))


def median_ratio(rows: pd.DataFrame, way: str) -> Value:
    """Return the median over networks of penalised steps over plain steps, as a value."""
    ratios = rows.ratio[rows.network == WAYS[way]]
    return Value(ratios.median(), n=len(ratios), word=summary(rows).word)


def answer(cpu: pd.DataFrame, timm: pd.DataFrame, cuda: pd.DataFrame) -> pd.DataFrame:
    """Return a table that says for networks and devices whether the view is faster, in HTML."""
    several = f"{cpu.method.nunique()} convolutional networks"
    parts = [(several, "CPU, 2 threads", cpu), (several, "GPU, NVIDIA H200", cuda)]
    parts.insert(1, (f"{len(timm)} networks of the library timm", "CPU, 1 thread", timm))
    names = ("Networks", "Device", "A step with the view is", "Times as fast: median (range)")
    rows = []
    for networks, device, part in parts:
        majority, (low, median, high) = summary(part), part.times.quantile([0, 0.5, 1])
        outcome = f"{badge(majority.word)} for {majority:.0f} of {majority.n}"
        cells = (networks, device, outcome, f"{median:.2f} ({low:.2f} to {high:.2f})")
        rows.append(dict(zip(names, cells, strict=True)))
    return pd.DataFrame(rows)


def landscape_steps(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return the cost of a landscape penalty in evaluation mode, over a plain step.

    Raises:
        ValueError: it was not measured.
    """
    cases = {row["case"]: row for row in results["rows"]}
    rows = []
    for name in [case.removesuffix(LANDSCAPE) for case in cases if case.endswith(LANDSCAPE)]:
        ten = cases[f"{name}{LANDSCAPE}"]
        row = {"network": name, "step with the penalty": 10 * ten["value"] - 9}
        row |= {"one in ten with it": ten["value"]}
        row |= {"quartiles": "{:.2f} to {:.2f}".format(*ten["quartiles"])}
        memory = cases.get(f"{name}: landscape penalty / plain step", {"value": float("nan")})
        rows.append(row | {"memory of the penalty": memory["value"]})
    if not rows:
        raise ValueError("benchmarks/results: expected a landscape penalty; run 'make bench'")
    return pd.DataFrame(rows)


def landscape_modes(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return time and memory of a landscape penalty in training mode, over evaluation mode.

    Raises:
        ValueError: it was not measured.
    """
    cases = {r["case"]: r for r in results["rows"] if r["benchmark"] == "evaluation mode"}
    rows = []
    for case, row in cases.items():
        name, _, what = case.partition(": ")
        if memory := cases.get(f"{name}: memory of {what}"):
            values = {"network": name, "time, training / evaluation": row["value"]}
            values |= {"quartiles": "{:.2f} to {:.2f}".format(*row["quartiles"])}
            rows.append(values | {"memory, training / evaluation": memory["value"]})
    if not rows:
        raise ValueError("benchmarks/results: expected both modes; run 'make bench'")
    return pd.DataFrame(rows)


TOP_GAP_STEPS = (
    "ResNet of width 16, pyramid of 64 filters, 32 pixels, batch 64",
    "PreAct-ResNet-18, pyramid of 256 filters, 32 pixels, batch 64",
    "ResNet-18, pyramid of 256 filters, 224 pixels, batch 16",
    "EfficientNet-B0, pyramid of 256 filters, 224 pixels, batch 16",
)
WITH_L1 = "with L1 / backbone"
FOURIER = ("Fourier pooling / backbone", "Fourier pooling / with L1")  # of ResNet-18
COSTS = {"time": "training step", "multiply-adds, forward": "multiply-adds", "memory": "memory"}


def top_gap_steps(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return the time of a training step with Top-GAP and L1 over a plain step, with quartiles."""
    start, end = "training step, ", f": {WITH_L1}"
    rows = pd.DataFrame(results["rows"])
    rows = rows[(rows["benchmark"] == "Top-GAP") & rows["case"].str.startswith(start)]
    rows = rows[rows["case"].str.endswith(end)]
    case = rows["case"].str.removeprefix(start).str.removesuffix(end)
    quartiles = rows["quartiles"].map(lambda ends: "{:.2f} to {:.2f}".format(*ends))
    return pd.DataFrame({"step": case, "times as long": rows["value"], "quartiles": quartiles})


def top_gap_costs(**devices: Mapping[str, Any] | None) -> pd.DataFrame:
    """Return time, multiply-adds and memory of a training step over another; "not run" without.

    Args:
        devices: results by the name of their device, by default all, see `load`.
    """
    devices = devices or {"CPU": load("cpu"), "H200": load("cuda")}
    rows = []
    for step in TOP_GAP_STEPS:
        for over in (WITH_L1, *(FOURIER if step.startswith("ResNet-18") else ())):
            row = {"step": step, "ratio": over}
            for device, results in devices.items():
                cases = {r["case"]: f"{r['value']:.2f}" for r in results["rows"]} if results else {}
                for title, cost in COSTS.items():
                    row[f"{title}, {device}"] = cases.get(f"{cost}, {step}: {over}", "not run")
            rows.append(row)
    return pd.DataFrame(rows)


FINE_TUNED = "fine-tuned: "
PEAK = ", peak above start"


def method_steps(results: Mapping[str, Any] | None, network: str = "") -> dict[str, float]:
    """Return the time of a step with each method of "side by side", over a step without one.

    The result is empty if nothing was measured; `network` is "" or `FINE_TUNED`.
    """
    rows = results["rows"] if results else []
    times = {}
    for row in rows:
        matches = row["case"].startswith(FINE_TUNED) == (network == FINE_TUNED)
        if row["benchmark"] == "side by side" and row["unit"] == "x" and matches:
            times[row["case"].removeprefix(network)] = row["value"]
    return times


def fine_tuning_steps(results: Mapping[str, Any] | None) -> pd.DataFrame:
    """Return the time and memory of steps of fine-tuning, over a plain step, and in MiB."""
    rows = results["rows"] if results else []
    times = method_steps(results, FINE_TUNED)
    memory = {
        row["case"].removeprefix(FINE_TUNED).removesuffix(PEAK): row["value"]
        for row in rows
        if row["benchmark"] == "side by side" and row["unit"] == "MiB"
    }
    costs = [
        {"method": method, "time": times.get(method, 1.0), "MiB": used}
        | {"memory": used / memory["none"]}
        for method, used in memory.items()
    ]
    return pd.DataFrame(costs, columns=["method", "time", "memory", "MiB"])


def density_forms(results: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table of steps with each form of the density penalty, over plain steps.

    Its rows are networks, or numbers of classes.

    Raises:
        ValueError: the steps were not measured.
    """
    forms = {f"marginal density, {form} / plain": form for form in FORMS}
    forms |= {f"{form} over the plain step": form for form in FORMS}
    rows = []
    for row in results["rows"]:
        network, _, what = row["case"].rpartition(": ")
        if what in forms:
            labels = {"network": network, "form": forms[what]}
            rows.append(labels | {"ratio": f"{row['value']:.3g}"})
    if not rows:
        raise ValueError("benchmarks/results: expected marginal density; run 'make bench'")
    table = pd.DataFrame(rows).pivot(index="network", columns="form", values="ratio")
    columns = [form for form in FORMS if form in table]
    networks = dict.fromkeys(row["network"] for row in rows)
    return table.loc[[*networks], columns].fillna("–").rename_axis(None, axis=1).reset_index()


def architectures(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table of architectures that pages show, from the rows of `timm`."""
    return pd.DataFrame(
        {
            "architecture": rows.method,
            "stock PyTorch": rows.stock_raises.fillna("").map(_reason),
            "error, training": rows.training.map("{:.0e}".format),
            "error, evaluation": rows.evaluation.map("{:.0e}".format),
            "stock / view": rows.times.map("{:.2f}".format),
        }
    )


def _reason(error: str) -> str:
    """Return in a word what PyTorch raised; empty if it did not."""
    for function in ("hardsigmoid", "attention"):
        if function in error:
            return f"raises: {function}"
    return f"raises: {error}" if error else ""
