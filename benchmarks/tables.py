"""Tables of what was measured, for the page "Differentiating a gradient"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

RESULTS = Path(__file__).parent / "results"
LANDSCAPE = ": landscape penalty in each 10th step / plain, channels-last"
FORMS = ("naive", "stable", "efficient", "logsumexp", "gradients of all logits")
COMPLAINTS = {"Three convolutions, batch 128": 3076, "PreAct-ResNet-18, batch 128": 7714}


def measured(name: str) -> dict[str, Any] | None:
    """Read what was measured on a device (cpu, cuda), or of architectures; None if nothing was."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def heading(results: Mapping[str, Any]) -> str:
    """Say when, where and with what something was measured."""
    machine = f"{results['device']}, {results['threads']} threads, {results['date']}"
    return f"**{machine}**, PyTorch {results['versions']['torch']}:"


def training_steps(results: Mapping[str, Any]) -> pd.DataFrame:
    """List ratios of training steps that took turns."""
    rows = pd.DataFrame(results["rows"])
    rows = rows[(rows.benchmark == "training step") & (rows.unit == "x")]
    return rows[["case", "goal"]].assign(
        median=rows.value.map("{:.2f}".format),
        quartiles=rows.quartiles.map(lambda q: f"{q[0]:.2f} to {q[1]:.2f}"),
        met=rows.met.map({True: "yes", False: "no"}),
    )


def complaints(results: Mapping[str, Any]) -> pd.DataFrame:
    """List the settings of issues of PyTorch, and their steps over the plain one.

    Raises:
        ValueError: they were not measured.
    """
    values = {row["case"]: row["value"] for row in results["rows"]}
    rows = []
    for network, issue in COMPLAINTS.items():
        row: dict[str, Any] = {"issue": issue, "network": network}
        for way in ("stock", "fast"):
            case = f"{network}: as a user has it, {way} / plain"
            if case not in values:
                raise ValueError(f"benchmarks/results: expected {case!r}; run 'make bench'")
            row[f"{way} / plain"] = values[case]
        rows.append(row)
    return pd.DataFrame(rows)


def landscape_steps(results: Mapping[str, Any]) -> pd.DataFrame:
    """List what a landscape penalty in evaluation mode costs, over a plain step.

    Raises:
        ValueError: it was not measured.
    """
    found = {row["case"]: row for row in results["rows"]}
    rows = []
    for name in [case.removesuffix(LANDSCAPE) for case in found if case.endswith(LANDSCAPE)]:
        ten = found[f"{name}{LANDSCAPE}"]
        row = {"network": name, "step with the penalty": 10 * ten["value"] - 9}
        row |= {"one in ten with it": ten["value"]}
        row |= {"quartiles": "{:.2f} to {:.2f}".format(*ten["quartiles"])}
        memory = found.get(f"{name}: landscape penalty / plain step", {"value": float("nan")})
        rows.append(row | {"memory of the penalty": memory["value"]})
    if not rows:
        raise ValueError("benchmarks/results: expected a landscape penalty; run 'make bench'")
    return pd.DataFrame(rows)


FINE_TUNED = "fine-tuned: "
PEAK = ", peak above start"


def method_steps(results: Mapping[str, Any] | None, network: str = "") -> dict[str, float]:
    """Return what a step with each method of "side by side" takes, over one without.

    It is empty where that was not measured; `network` is "" or `FINE_TUNED`.
    """
    rows = results["rows"] if results else []
    found = {}
    for row in rows:
        of_network = row["case"].startswith(FINE_TUNED) == (network == FINE_TUNED)
        if row["benchmark"] == "side by side" and row["unit"] == "x" and of_network:
            found[row["case"].removeprefix(network)] = row["value"]
    return found


def fine_tuning_steps(results: Mapping[str, Any] | None) -> pd.DataFrame:
    """List time and memory of a step of fine-tuning: `method`, over a plain step, and in MiB."""
    rows = results["rows"] if results else []
    times = method_steps(results, FINE_TUNED)
    memory = {
        row["case"].removeprefix(FINE_TUNED).removesuffix(PEAK): row["value"]
        for row in rows
        if row["benchmark"] == "side by side" and row["unit"] == "MiB"
    }
    found = [
        {"method": method, "time": times.get(method, 1.0), "MiB": used}
        | {"memory": used / memory["none"]}
        for method, used in memory.items()
    ]
    return pd.DataFrame(found, columns=["method", "time", "memory", "MiB"])


def density_forms(results: Mapping[str, Any]) -> pd.DataFrame:
    """List steps with each form of the marginal density's penalty, and by classes, over plain ones.

    Raises:
        ValueError: they were not measured.
    """
    forms = {f"marginal density, {form} / plain": form for form in FORMS}
    forms |= {f"{form} over the plain step": form for form in FORMS}
    rows = []
    for row in results["rows"]:
        network, _, what = row["case"].rpartition(": ")
        if what in forms:
            found = {"network": network, "form": forms[what]}
            rows.append(found | {"ratio": f"{row['value']:.3g}"})
    if not rows:
        raise ValueError("benchmarks/results: expected marginal density; run 'make bench'")
    table = pd.DataFrame(rows).pivot(index="network", columns="form", values="ratio")
    columns = [form for form in FORMS if form in table]
    networks = dict.fromkeys(row["network"] for row in rows)
    return table.loc[[*networks], columns].fillna("–").rename_axis(None, axis=1).reset_index()


def architectures(results: Mapping[str, Any]) -> tuple[str, pd.DataFrame]:
    """Sum up in words what came of architectures, and list them, those that gain most first."""
    rows = pd.DataFrame(results["rows"]).sort_values("stock_over_fast", ascending=False)
    raises = rows.stock_raises.fillna("").map(_reason)
    names = ", ".join(sorted(rows.architecture[raises != ""]))
    text = (
        f"{heading(results)} images of {results['pixels']} pixels, {results['batch']['speed']} in "
        f"a batch, timm {results['timm']}. Of {len(rows)} architectures, {rows.exact.sum()} agree "
        f"to {results['tolerance']:.0e} in both modes. Stock PyTorch raises for "
        f"{(raises != '').sum()}: {names}."
    )
    table = pd.DataFrame(
        {
            "architecture": rows.architecture,
            "stock PyTorch": raises,
            "training": rows.training.map("{:.0e}".format),
            "evaluation": rows.evaluation.map("{:.0e}".format),
            "stock / fast": rows.stock_over_fast.map("{:.2f}".format),
        }
    )
    return text, table


def _reason(error: str) -> str:
    """Say in a word what PyTorch raised, if it did."""
    for function in ("hardsigmoid", "attention"):
        if function in error:
            return f"raises: {function}"
    return f"raises: {error}" if error else ""
