"""Chapters derive the kept rows and arrays again from kept records."""

import io
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from suite import notebooks
from suite.runs.compute import table
from suite.runs.execute import keys_of
from suite.store import archive_path, read_archive

# Top-GAP: workstation draws images of data of no package, laptop keeps an array more than it makes.
CHAPTERS = ["gradient_regularisation", "high_order_saliency", "marginal_density", "side_by_side"]
RUNS = [(c, p) for c in CHAPTERS for p in ("laptop", "desktop", "workstation")]
RUNS.append(("top_gap", "desktop"))
# Columns that results kept earlier have, and rows no longer.
SETTINGS = "learning_rate pixel_range n_train optimizer input_gradient_strength".split()
SETTINGS += "n_images patch n_samples blocks width stem crop_padding flip cosine_epochs".split()
SETTINGS += ["metric_data"]
# Measures that results of high-order saliency kept earlier have, besides random true losses.
GONE = "moved norm deletion faithfulness entropy ten_cosine ten_norm".split()


def reader(archive):
    """Return the records and tensors of an archive, as `collect` asks for them."""
    tensors = defaultdict(dict)
    for path, tensor in archive.tensors.items():
        key, _, name = path.partition("/")
        tensors[key][name] = tensor
    return SimpleNamespace(read=archive.records.get, read_tensors=tensors.get)


def tidy(frame, columns):
    """Return the rows in one order, whatever theirs, read from text as kept rows are."""
    read = pd.read_csv(io.StringIO(frame.to_csv(index=False)), low_memory=False)
    read = read.astype(dict.fromkeys(read.select_dtypes("number"), float))[columns]
    settings = [name for name in columns if name != "value"]
    return read.sort_values([*settings, "value"], key=lambda c: c.astype(str), ignore_index=True)


@pytest.mark.parametrize(("chapter", "profile"), RUNS)
def test_collected_as_they_were_kept(chapter, profile):
    archive = read_archive(archive_path(chapter, profile))
    parameters = notebooks.resolve(chapter, profile, {})
    plan = notebooks.plan_of(chapter, parameters)
    units = plan.units()
    keys = keys_of(units, archive.provenance["fingerprints"])
    computed, paper = table(units, keys, archive.records), notebooks.paper(chapter)
    rows, arrays = plan.collect(paper, parameters, computed, reader(archive))
    columns = [name for name in archive.rows if name in rows or name not in SETTINGS]
    kept = archive.rows
    if chapter == "high_order_saliency":
        gone = (kept["metric"] == "true_loss") & (kept["saliency"] == "random")
        kept = kept[~gone & ~kept["metric"].isin(GONE)]
    # Another processor sums in another order.
    pd.testing.assert_frame_equal(tidy(rows, columns), tidy(kept, columns), rtol=1e-12, atol=0)
    assert arrays.keys() == archive.arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, archive.arrays[name])
