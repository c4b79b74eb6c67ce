"""What every chapter does."""

import pandas as pd

from suite.chapter import Chapter


def test_trainings_that_diverged_are_counted_for_each_profile(monkeypatch):
    chapter = object.__new__(Chapter)
    chapter.profile, chapter.results = "desktop", []
    rows = [("desktop", "done"), ("workstation", "diverged"), ("workstation", "done")]
    rows += [("paper", "done")]
    table = pd.DataFrame(rows, columns=["profile", "status"]).assign(metric="training_loss")
    chapter.table = pd.concat([table, table.assign(metric="accuracy")])
    chapter.computed = pd.DataFrame({"metric": "training_loss", "status": ["diverged"] * 2})
    shown = []
    monkeypatch.setattr("suite.chapter.display", shown.append)
    chapter.show_run()
    assert shown[0].data.splitlines() == [
        "- *desktop*: 2 trainings, of which 2 diverged.",
        "- *workstation*: 2 trainings, of which 1 diverged.",
    ]


def test_networks_and_their_accuracy_are_those_on_images_like_the_training_s(monkeypatch):
    chapter = object.__new__(Chapter)
    tests = {"own": [0.8, 0.9], "shifted": [0.1, 0.2], "validation": [0.85]}
    rows = [(test, value) for test, values in tests.items() for value in values]
    same = {"metric": "accuracy", "profile": "desktop", "data": "mnist5k", "network": "lenet5"}
    chapter.table = pd.DataFrame(rows, columns=["test", "value"]).assign(**same)
    shown = []
    monkeypatch.setattr("suite.chapter.display", shown.append)
    chapter.what_we_ran()
    assert shown[0].data[["networks", "accuracy, median network"]].values.tolist() == [[3, "0.850"]]
