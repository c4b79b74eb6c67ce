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


@pytest.fixture
def shown(monkeypatch):
    objects = []
    monkeypatch.setattr("suite.chapter.display", lambda *shown: objects.extend(shown))
    return objects


@pytest.fixture
def blank(shown):
    return object.__new__(Chapter)


class TestShow:
    def test_diverged_trainings_are_counted(self, blank, shown):
        blank.profile, blank.results = "desktop", []
        rows = [("desktop", "done"), ("workstation", "diverged"), ("workstation", "done")]
        rows += [("paper", "done")]
        table = pd.DataFrame(rows, columns=["profile", "status"]).assign(metric="training_loss")
        blank.table = pd.concat([table, table.assign(metric="accuracy")])
        blank.computed = pd.DataFrame({"metric": "training_loss", "status": ["diverged"] * 2})
        blank.show_run()
        assert shown[0].data.splitlines() == [
            "- *desktop*: 2 trainings, of which 2 diverged.",
            "- *workstation*: 2 trainings, of which 1 diverged.",
        ]

    def test_networks_and_their_accuracy(self, blank, shown):
        network, empty = {"data": "mnist5k", "network": "lenet5"}, pd.DataFrame()
        trainings = [network | {"accuracy": value} for value in (0.8, 0.85, 0.9)]
        blank.results = [Results(empty, empty, {}, {"profile": "desktop"}, trainings)]
        blank.what_we_ran()
        row = shown[0].data[["networks", "accuracy, median network"]].values.tolist()
        assert row == [[3, "0.850"]]

    def test_tabs_take_tables_and_figures(self, blank, shown, monkeypatch):
        monkeypatch.setattr(Chapter, "claims_tab", lambda self, *sections: " and ".join(sections))
        rows = pd.DataFrame({"a": ["cell"]})
        pieces = {"Figure": plots.draw_notice("drawn"), "One": rows, "Two": {"first name": rows}}
        blank.tabs(pieces | {"None": ""}, "first", "second", alt="a figure", caption="below")
        text = shown[0].data
        tabs = [text.count(f">{tab}</label>") for tab in [*pieces, "Claims", "None"]]
        assert (tabs, text.count("cell</td>")) == ([1, 1, 1, 1, 0], 2)
        for part in ("<p>first name</p><table", 'alt="a figure"', "first and second"):
            assert part in text

    def test_slider_has_all_pictures(self, blank, shown):
        grids = {name: [[np.zeros((4, 4), np.uint8)]] for name in ("small", "large")}
        blank.slider(grids, alt="maps", label="size", titles=["map"])
        assert shown[0].data.count("data:image/png") == 2

    def test_tells_a_sentence_of_data(self, blank, shown):
        rows = {"profile": "smoke", "metric": "m", "status": "done", "data": "x", "network": "y"}
        methods = {"method": ["a", "b"] * 2, "seed": [0, 0, 1, 1], "value": [0.5, 0.25] * 2}
        blank.table = pd.DataFrame(rows | methods)
        values = {"mean": {"method": "a"}, "gap": {"between": ["method", "a", "b"]}}
        expects = {"gap": "higher"}
        blank.tell({"text": "{mean:.2f}, {gap:.2f}", "values": values, "expects": expects})
        assert shown[0].data == "0.50, 0.25"


def of_profile(base, **changes):
    return notebooks.all_parameters(NAME, notebooks.profiles(NAME)[base]) | changes


class TestNameOfRun:
    @pytest.mark.parametrize("profile", notebooks.profiles(NAME))
    def test_of_a_profile(self, shown, profile):
        assert Chapter(NAME, of_profile(profile)).profile == profile
        assert not shown

    @pytest.mark.parametrize("name", ["workstation", "workstation+n_images=9"])
    def test_says_what_differs(self, shown, name):
        chapter = Chapter(NAME, of_profile("workstation", profile=name, n_images=64))
        assert chapter.profile == chapter.parameters["profile"] == "workstation+n_images=64"
        notice = "`workstation+n_images=64` is not a run of the profile *workstation*"
        assert notice in shown[0].data

    def test_own_name(self, shown):
        assert Chapter(NAME, of_profile("smoke", profile="mine")).profile == "mine"
        assert "`mine` is not that of a profile" in shown[0].data

    @pytest.mark.parametrize("chapter", notebooks.chapters())
    def test_of_an_unchanged_notebook(self, chapter):
        defaults = {name: entry.default for name, entry in notebooks.parameters(chapter).items()}
        assert notebooks.notebook_parameters(chapter, defaults) == defaults
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
        assert notebooks.notebook_parameters(NAME, defaults)["profile"] == "desktop+repetitions=2"

    def test_changed_run_has_own_results(self, shown, monkeypatch, tmp_path):
        monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path))
        kept = load_results(NAME, "workstation").frame.drop(columns="profile")
        monkeypatch.setattr(paper, "plan", lambda parameters: paper.Plan())
        monkeypatch.setattr(paper.Plan, "collect", lambda *_: (kept, {}))
        nothing = pd.DataFrame(columns=["key", "metric", "status"])
        monkeypatch.setattr("suite.chapter.compute", lambda *_, **__: nothing)
        before, chapter = all_verdicts(), Chapter(NAME, of_profile("workstation", n_images=64))
        chapter.run()
        run, profiles = "workstation+n_images=64", list(chapter.table["profile"].unique())
        assert [folder.name for folder in (tmp_path / "results").iterdir()] == [run]
        assert profiles[0] == run
        assert "workstation" in profiles
        pd.testing.assert_frame_equal(all_verdicts(), before)
        assert run in set(all_verdicts(every=True)["profile"])
        (chapter := Chapter(NAME, of_profile("workstation"))).run()
        assert {chapter.shown, *chapter.table["profile"]} == {
            "workstation"
        }  # and no smaller profile


class TestInjectedParameters:
    """Papermill writes parameters of any name and type into a cell of its own."""

    def values(self, source, **injected):
        return of_profile("smoke") | injected | {"In": ["", "# Parameters\n" + source]}

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("n_image", 2, "'n_image': did you mean 'n_images'"),
            ("panels", "[{'data': 'mnist5k'}]", "parameter panels: expected list like"),
            ("profile", "../x", "the name of a run: expected"),
        ],
    )
    def test_refused(self, name, value, message):
        with pytest.raises(UsageError, match=message):
            Chapter(NAME, self.values(f"{name} = {value!r}\n", **{name: value}))

    def test_known_names(self):
        assert Chapter(NAME, self.values("n_maps = 2\n", n_maps=2)).profile == "smoke"
