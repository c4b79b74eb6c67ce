"""What every chapter does."""

import shutil

import numpy as np
import pandas as pd
import pytest

from suite import notebooks, plots
from suite.chapter import Chapter
from suite.errors import UsageError
from suite.evidence.report import all_verdicts
from suite.evidence.results import Results, load_results
from suite.papers import gradient_regularisation as paper

NAME = "gradient_regularisation"


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


def test_networks_are_counted_once_with_their_accuracy(monkeypatch):
    chapter = object.__new__(Chapter)
    same = {"data": "mnist5k", "network": "lenet5"}
    trainings = [same | {"accuracy": value} for value in (0.8, 0.85, 0.9)]
    empty = pd.DataFrame()
    chapter.results = [Results(empty, empty, {}, {"profile": "desktop"}, trainings)]
    shown = []
    monkeypatch.setattr("suite.chapter.display", shown.append)
    chapter.what_we_ran()
    assert shown[0].data[["networks", "accuracy, median network"]].values.tolist() == [[3, "0.850"]]


class TestShow:
    @pytest.fixture
    def chapter(self, monkeypatch):
        chapter, self.shown = object.__new__(Chapter), []
        monkeypatch.setattr("suite.chapter.display", self.shown.append)
        monkeypatch.setattr(Chapter, "claims_tab", lambda self, *sections: " and ".join(sections))
        return chapter

    def test_tabs_take_tables_and_figures(self, chapter):
        rows = pd.DataFrame({"a": ["cell"]})
        pieces = {"Figure": plots.not_run("drawn"), "One": rows, "Two": {"first name": rows}}
        chapter.tabs(pieces | {"None": ""}, "first", "second", alt="a figure", caption="below")
        text = self.shown[0].data
        assert [text.count(f">{tab}</label>") for tab in [*pieces, "Claims", "None"]] == [1] * 4 + [
            0
        ]
        assert text.count("cell</td>") == 2
        assert "<p>first name</p><table" in text
        assert 'alt="a figure"' in text
        assert "first and second" in text

    def test_slider_has_a_picture_a_step(self, chapter):
        grids = {name: [[np.zeros((4, 4), np.uint8)]] for name in ("small", "large")}
        chapter.slider(grids, alt="maps", label="size", titles=["map"])
        assert self.shown[0].data.count("data:image/png") == 2


def of_profile(base, **changes):
    return notebooks.all_parameters(NAME, notebooks.profiles(NAME)[base]) | changes


class TestNameOfRun:
    @pytest.fixture
    def shown(self, monkeypatch):
        texts = []
        monkeypatch.setattr("suite.chapter.display", lambda *parts: texts.extend(parts))
        return texts

    @pytest.mark.parametrize("profile", notebooks.profiles(NAME))
    def test_of_a_profile(self, shown, profile):
        assert Chapter(NAME, of_profile(profile)).profile == profile
        assert not shown

    @pytest.mark.parametrize("name", ["workstation", "workstation+n_images=9"])
    def test_says_what_differs(self, shown, name):
        chapter = Chapter(NAME, of_profile("workstation", profile=name, n_images=64))
        assert chapter.profile == chapter.parameters["profile"] == "workstation+n_images=64"
        assert (
            "`workstation+n_images=64` is not a run of the profile *workstation*" in shown[0].data
        )

    def test_of_ones_own(self, shown):
        assert Chapter(NAME, of_profile("smoke", profile="mine")).profile == "mine"
        assert "`mine` is not that of a profile" in shown[0].data

    @pytest.mark.parametrize("chapter", notebooks.chapters())
    def test_of_a_notebook_as_it_is(self, chapter):
        """Run all in Jupyter: the defaults are the profile desktop, all of it."""
        defaults = {name: entry.default for name, entry in notebooks.parameters(chapter).items()}
        assert notebooks.of_notebook(chapter, defaults) == defaults
        assert defaults["profile"] == "desktop"
        assert notebooks.profiles(chapter)["desktop"] == defaults

    def test_of_an_edited_notebook(self, monkeypatch, tmp_path):
        shutil.copytree(notebooks.NOTEBOOKS, tmp_path / "notebooks")
        monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path / "notebooks")
        file = notebooks.source(NAME)
        text = file.read_text(encoding="utf-8")
        assert "repetitions: int = 1 " in text
        file.write_text(text.replace("repetitions: int = 1 ", "repetitions: int = 2 "), "utf-8")
        defaults = {name: entry.default for name, entry in notebooks.parameters(NAME).items()}
        run = notebooks.of_notebook(NAME, defaults)["profile"]
        assert run == "desktop+repetitions=2"

    def test_results_stand_apart(self, shown, monkeypatch, tmp_path):
        monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path))
        monkeypatch.setenv("REGLIB_STORE", str(tmp_path / "store"))
        kept = load_results(NAME, "workstation").frame.drop(columns="profile")
        monkeypatch.setattr(paper, "plan", lambda parameters: paper.Plan())
        monkeypatch.setattr(paper.Plan, "collect", lambda *_: (kept, {}))
        nothing = pd.DataFrame(columns=["key", "metric", "status"])
        monkeypatch.setattr("suite.chapter.compute", lambda *_, **__: nothing)
        before = all_verdicts()
        chapter = Chapter(NAME, of_profile("workstation", n_images=64))
        chapter.run()
        run = "workstation+n_images=64"
        assert [folder.name for folder in (tmp_path / "results").iterdir()] == [run]
        profiles = list(chapter.table["profile"].unique())
        assert profiles[0] == run
        assert "workstation" in profiles
        pd.testing.assert_frame_equal(all_verdicts(), before)
        assert run in set(all_verdicts(every=True)["profile"])


class TestInjectedParameters:
    """Papermill puts parameters into a cell of its own, whatever their names and types."""

    def values(self, source, **injected):
        return of_profile("smoke") | injected | {"In": ["", "# Parameters\n" + source]}

    def test_unknown_name(self):
        values = self.values("n_image = 2\n", n_image=2)
        with pytest.raises(UsageError, match="'n_image': did you mean 'n_images'"):
            Chapter(NAME, values)

    def test_text_for_a_list(self):
        text = "[{'data': 'mnist5k'}]"
        with pytest.raises(UsageError, match="parameter panels: expected list like"):
            Chapter(NAME, self.values(f"panels = {text!r}\n", panels=text))

    def test_a_folder_elsewhere(self):
        with pytest.raises(UsageError, match="the name of a run: expected"):
            Chapter(NAME, self.values("profile = '../x'\n", profile="../x"))

    def test_known_names(self):
        assert Chapter(NAME, self.values("n_maps = 2\n", n_maps=2)).profile == "smoke"
