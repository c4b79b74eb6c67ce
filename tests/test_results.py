import json

import numpy as np
import pandas as pd
import pytest

from suite.errors import RunFailed
from suite.evidence import report
from suite.evidence.report import origin, section_verdicts, write_estimate
from suite.evidence.results import Results, load_results, save_tables
from suite.evidence.rules import NOT_TESTABLE
from suite.store import Archive, archive_path


def results(value=1.0):
    row = {"data": "mnist", "metric": "entropy", "seed": 0, "value": value, "std": 0.5, "n": 100}
    frame = pd.DataFrame([row | {"undefined": 0, "status": "done", "seconds": 1.0, "key": "k"}])
    verdicts = pd.DataFrame({"claim": ["c"], "verdict": ["holds"]})
    return Results(frame, verdicts, {"a|b": np.eye(2)}, {"profile": "smoke"})


def curve(metric, **columns):
    """Return rows of the chapter on gradient regularisation with a falling metric."""
    where = {"data": "mnist5k", "network": "lenet5", "metric": metric, "status": "done"}
    where |= {"saliency": "logit_gradient", "score": None, "changed": "pixels", "place": "plateau"}
    where |= dict.fromkeys(["over_regularised", "beyond_t_alpha", "normalised"], False)
    values = {"alpha": np.logspace(2, 10, 9), "value": -np.arange(9.0)}
    return pd.DataFrame(where | values | columns)


class TestResults:
    def test_tables_and_provenance_are_written(self, tmp_path, monkeypatch):
        monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path))
        file = save_tables("chapter", "smoke", results())
        folder = tmp_path / "results" / "smoke"
        assert file == folder / "chapter.verdicts.csv"
        pd.testing.assert_frame_equal(pd.read_csv(file), results().verdicts)
        rows = pd.read_csv(folder / "chapter.csv")
        pd.testing.assert_frame_equal(rows, results().frame, check_dtype=False)
        assert json.loads((folder / "chapter.provenance.json").read_text()) == {"profile": "smoke"}

    def test_kept_results_are_judged(self, tmp_path):
        frame = curve("local_lipschitz_estimate", seed=0)
        frame = pd.concat([frame, frame.assign(saliency="deeplift")], ignore_index=True)
        path = archive_path("gradient_regularisation", "laptop", tmp_path)
        Archive({}, {}, frame, {"a|b": np.eye(2)}, {"units": 9}).write(path)
        read = load_results("gradient_regularisation", "laptop", tmp_path)
        assert NOT_TESTABLE in {*read.verdicts.set_index("claim")["verdict"].loc["lipschitz-falls"]}
        assert set(read.frame["profile"]) == {"laptop"}
        np.testing.assert_array_equal(read.arrays["a|b"], np.eye(2))
        assert read.provenance["units"] == 9

    def test_missing_results_are_empty(self, tmp_path, capsys):
        assert load_results("chapter", "smoke", tmp_path).frame.empty
        assert capsys.readouterr().out == ""

    def test_damaged_results_are_named(self, tmp_path, capsys):
        path = archive_path("chapter", "smoke", tmp_path)
        Archive({}, {}, pd.DataFrame({"value": [1.0]}), {}, {}).write(path)
        path.write_bytes(path.read_bytes()[:-9])
        assert load_results("chapter", "smoke", tmp_path).frame.empty
        out = capsys.readouterr().out
        assert str(path) in out
        assert "does not agree with the checksum" in out

    def test_unwritable_folder_is_named(self, tmp_path):
        (tmp_path / "smoke").write_text("a file in the way")
        with pytest.raises(RunFailed, match=str(tmp_path / "smoke")):
            save_tables("chapter", "smoke", results(), tmp_path)


ABOUT = {"profile": "laptop", "units": 9, "here": 0, "seconds": 290.0, "device": ["x86_64 CPU"]}
ABOUT |= {"threads": [2], "commit": ["abc"]}


def test_origin_of_numbers():
    where = "x86_64 CPU with 2 threads a process, at commit abc, in 5 min of work"
    again = "`make rerun` repeats it"
    assert origin(ABOUT) == f"*laptop*: 9 kept units, computed on {where}; {again}."
    all_here = f"*laptop*: 9 units, all computed on this machine: {where}."
    assert origin(ABOUT | {"here": 9}) == all_here
    assert "5 kept units and 4 of this machine, computed on" in origin(ABOUT | {"here": 4})
    larger = {name: value for name, value in ABOUT.items() if name != "here"}
    assert origin(larger | {"profile": "workstation"}).endswith("5 min of work.")


def test_estimate_has_interval_and_p():
    verdict = {"statistic": "ρ", "estimate": 0.5, "low": 0.25, "high": 0.75, "p": 0.01, "n": 6}
    assert write_estimate(pd.Series(verdict)) == "ρ: 0.50 [0.25, 0.75], p = 0.01, n = 6"


@pytest.fixture(autouse=True)
def _claims(monkeypatch):
    sections = {"a": "one", "b": "one", "c": "two"}
    claims = [
        {"id": name, "section": section, "published": "less", "says": f"{name} falls"}
        for name, section in sections.items()
    ]
    monkeypatch.setattr(report, "load_claims", lambda chapter: claims)


def verdict(claim, data, profile, word):
    numbers = {"statistic": "mean", "estimate": 1.0, "low": 0.5, "high": 1.5, "p": np.nan, "n": 6}
    numbers |= {"detail": "", "needed": 9.0 if word == "inconclusive" else np.nan, "looks": 1}
    numbers |= {"scale": "reduced", "tier": "headline", "unit": "network", "network": "mlp"}
    where = {"claim": claim, "data": data, "profile": profile}
    return numbers | where | {"word": word, "verdict": word}


class TestSection:
    def test_tested_claims_have_a_row(self):
        rows = [
            verdict("a", "mnist5k", "laptop", "holds"),
            verdict("a", "mnist5k", "workstation", "not run"),  # but tested at another profile
            verdict("a", "mnist", "laptop", "not run"),
            verdict("b", "mnist5k", "laptop", "not run"),  # but claim a was tested
            verdict("b", "imagenet", "laptop", "not run"),
            verdict("c", "celeba", "laptop", "not run"),
        ]
        verdicts = pd.DataFrame(rows)
        table = section_verdicts("chapter", verdicts, "one")
        assert list(table["claim"]) == ["a falls<br><i>mean</i>"]
        assert section_verdicts("chapter", verdicts, "two").empty

    def test_smaller_profiles_with_other_verdicts(self):
        words = {"mnist5k": "inconclusive", "b": "holds"}
        small = [verdict("a", data, "desktop", word) for data, word in words.items()]
        verdicts = pd.DataFrame([*small, verdict("a", "mnist", "workstation", "holds")])
        (lines,) = section_verdicts("chapter", verdicts, "one")["here"]
        words = [line.partition(", ")[0] for line in lines.split("<br>")]
        assert words == ["<b>inconclusive</b> (reduced)", "<b>holds</b> (reduced)"]
        small[0]["verdict"] = NOT_TESTABLE
        verdicts = pd.DataFrame([*small, verdict("a", "mnist", "workstation", "holds")])
        assert section_verdicts("chapter", verdicts, "one")["here"].str.count("<b>").tolist() == [1]

    def test_row_has_all_verdicts(self):
        measured = {"statistic": "x − y", "estimate": 1.0, "low": 0.5, "high": 1.5, "n": 4}
        untested = {"statistic": "", "estimate": np.nan, "detail": "too few"}
        smaller = measured | {"detail": "smaller than published"}
        rows = [
            verdict("a", "mnist", "desktop", "holds") | smaller,
            verdict("a", "mnist", "workstation", "inconclusive") | measured,
            verdict("a", "kmnist", "workstation", NOT_TESTABLE) | untested,
        ]
        table = report.tabulate_claims(report.join_claims("chapter", pd.DataFrame(rows)))
        (row,) = table.to_dict("records")
        assert row["claim"] == "a falls<br><i>x − y</i>"
        estimate = "1.00 [0.50, 1.50], n = 4"
        needed = f"MNIST, workstation: {estimate}: about 9 networks would settle it"
        assert row["here"].split("<br>") == [
            f"<b>holds</b> (reduced), MNIST, desktop: {estimate}: smaller than published",
            f"<b>inconclusive</b> (reduced), {needed}",
            "<b>not testable here</b> (reduced), KMNIST: too few",
        ]
        table = report.tabulate_claims(report.join_claims("chapter", pd.DataFrame(rows[:1])))
        assert table["claim"].tolist() == ["a falls<br><i>x − y</i>"]
        line = f"<b>holds</b> (reduced), MNIST: {estimate}: smaller than published"
        assert table["here"].tolist() == [line]
