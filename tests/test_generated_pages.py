import json
import re

import nbformat
import pandas as pd
import pytest

from suite.book import benchmarks, front, pages, records
from suite.evidence.claims import judge, load_claims
from suite.evidence.report import all_verdicts
from suite.evidence.results import Results, save_tables
from suite.evidence.rules import WORDS
from suite.paths import KEPT_RESULTS, read_yaml
from tests.test_results import curve

CHAPTER = "gradient_regularisation"
WITHOUT_CLAIMS = "differentiating_a_gradient"


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Results of a laptop run, in which max-sensitivity falls, and of a smoke run."""
    monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "executed"))
    for module in ("evidence.report", "book.pages", "store.kept"):
        monkeypatch.setattr(f"suite.{module}.KEPT_RESULTS", tmp_path / "kept")
    frame = curve("max_sensitivity", seed=range(9))
    accuracy = frame.assign(metric="accuracy", saliency=None, value=0.95)
    frame = pd.concat([frame, frame.assign(saliency="deeplift"), accuracy])
    for profile in ("laptop", "smoke"):
        verdicts = judge(load_claims(CHAPTER), frame.assign(profile=profile))
        about = {"chapter": CHAPTER, "profile": profile, "units": 9, "seconds": 12.0}
        about |= {"ended": {"last": "2026-01-02T03:04:05Z"}, "device": ["a CPU"]}
        about |= {"threads": [1], "torch": ["2.15.0"], "commit": ["abc"]}
        save_tables(CHAPTER, profile, Results(frame, verdicts.assign(profile=profile), {}, about))
    return tmp_path / "executed"


def test_each_headline_has_a_row(executed):
    verdicts = all_verdicts()
    assert set(verdicts["profile"]) == {"laptop"}  # smoke runs are no evidence
    rows = pages.headline_rows(verdicts)
    claims = [claim for claim in load_claims(CHAPTER) if claim["tier"] == "headline"]
    assert rows[rows["chapter"] == CHAPTER]["says"].tolist() == [claim["says"] for claim in claims]
    assert set(rows["chapter"]) == set(pages.chapters_with_claims())
    ran = rows["claim"] == "max-sensitivity-falls"
    assert (ran.sum(), (rows["verdict"] != "not run").tolist()) == (1, ran.tolist())
    table = pages.headline_table(rows)
    assert "| the gradient's maps become more faithful on MNIST | **not run** |" in table
    assert pages.values(verdicts)[f"{CHAPTER}:max-sensitivity-falls"]["word"] == "holds"


def test_evidence_page_has_records_and_rules(executed):
    page = pages.evidence_page(all_verdicts())
    for chapter in pages.chapters_with_claims():
        assert f"<{chapter}_record>" in page
    assert all(f"`{name}`" in page for name in pages.RULES)
    assert load_claims(WITHOUT_CLAIMS) == []
    assert "Differentiating" not in page
    assert WITHOUT_CLAIMS not in pages.chapters_with_claims()


def test_summary_counts_each_tier(executed):
    lines = pages.summary_table(all_verdicts()).splitlines()
    head = "|  | tier | holds | smaller than claimed | no effect | contradicted |"
    assert lines[0].startswith(head)
    assert "| **Gradient regularisation** | supporting | 1 | 0 | 0 | 0 | 0 | 0 |" in lines
    assert "| **PILCRO** | headline | 0 | 0 | 0 | 0 | 0 | 0 |" in lines


def test_status_page_has_runs_and_licences(executed):
    page = pages.status_page()
    assert "| here | gradient regularisation | laptop | 9 | 12 | 2026-01-02 |" in page
    for name, entry in pages.SOURCES.items():
        assert f"`{name}` | {entry.about} | {entry.licence}" in page
    assert "| differentiating a gradient | smoke | `mnist5k` |" in page
    table = page.split("## Profiles")[1].split("## Data sets")[0]
    assert "| marginal density | desktop | `blockmnist5k`" in table
    assert not re.search(r"\|\s*\|$", table, re.MULTILINE)
    row = next(line for line in page.splitlines() if "| marginal density | workstation |" in line)
    photographs = "`cifar10-jpeg`, `resized:imagenette160:96`"
    assert f"`blockmnist`, {photographs}, `texturedmnist`, `texturedmnist-1pct`" in row


def test_benchmark_page(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)

    def row(benchmark, case, value, unit, goal=None, met=None):
        values = {"value": value, "unit": unit, "quartiles": [0.9 * value, 1.1 * value]}
        return {"benchmark": benchmark, "case": case, "goal": goal, "met": met} | values

    results = {"device": "a CPU", "system": "Linux", "threads": 1, "date": "2026-01-02"}
    results |= {"versions": {"torch": "2.15.0"}}
    results["rows"] = [
        row("import", "reglib", 1234.5, "ms", "at most 300", False),
        row("training step", "LeNet-5, batch 8: fast / plain", 1.5, "x", "at most 2", True),
        row("training step", "LeNet-5, batch 8: fast", 15.0, "ms"),
        row("metrics against Quantus", "entropy: Quantus / reglib", 40.0, "x"),
        row("input Hessian", "authors' way / leading eigenpair", 130.0, "x"),
    ]
    (folder / "cpu.json").write_text(json.dumps(results))
    (folder / "others.json").write_text(json.dumps({"architectures": []}))
    monkeypatch.setattr(benchmarks, "ROOT", tmp_path)
    page = pages._page("benchmarks", **benchmarks.contents(tmp_path))
    assert "| reglib | 1,234 ms | 1,111 to 1,358 | at most 300 | not met |" in page
    assert "Of 2 goals, 1 are met; not met: reglib." in page
    assert "LeNet-5, fast: 1.5 plain steps" in page
    assert (tmp_path / "benchmarks-cpu.png").stat().st_size > 1000
    ratios = benchmarks.ratios_of(results["rows"])
    assert ratios[["panel", "method", "network"]].to_numpy().tolist() == [
        ["training step", "fast", "LeNet-5"],
        ["peers", "entropy", "Quantus"],
        ["peers", "input Hessian, leading eigenpair", "the authors' way"],
    ]


@pytest.fixture
def chapter(tmp_path):
    def cell(source, *tags):
        return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})

    cells = [cell("seen"), cell("p = 1", "parameters"), cell("moved", "record"), cell("end")]
    path = tmp_path / "sample.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_each_cell_of_a_notebook_has_one_of_two_pages(chapter, tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    page, record = records.split(chapter, folder, "# first", "last")
    assert sources(page) == ["seen", "end"]
    assert sources(record) == ["# first", "moved", "p = 1", "last"]
    nbformat.validate(nbformat.read(record, as_version=4))


def test_opening_has_every_claim(tmp_path, kept_verdicts):
    rows = kept_verdicts[kept_verdicts["chapter"] == "top_gap"]
    text = records.opening("top_gap", "Top-GAP", rows, tmp_path)
    for claim in load_claims("top_gap"):
        assert f"(top-gap-{claim['id']})=" in text
        assert claim["quote"] in text


def test_closing_has_changes_and_history():
    text = records.closing("top_gap")
    rows = (KEPT_RESULTS / "verdicts_changed.csv").read_text().splitlines()
    assert text.count("workstation |") == sum(r.startswith("workstation,top_gap") for r in rows)
    assert "## History of the rules" in text


CARDS = read_yaml(front.CARDS)["cards"]


@pytest.fixture(scope="module")
def text(kept_verdicts):
    return front.cards(kept_verdicts)


class TestCards:
    @pytest.mark.parametrize("card", CARDS, ids=lambda card: card["chapter"])
    def test_expects_a_headline(self, card):
        tiers = {c["id"]: c["tier"] for c in load_claims(card["chapter"])}
        assert "headline" in {tiers[claim] for claim in card["expects"]}
        assert set(card["expects"].values()) <= set(WORDS)

    def test_every_card_is_complete(self, text):
        assert text.count('<a class="card"') == len(CARDS) == text.count("<img ")
        assert text.count(" claims held.") == text.count('class="scale"') == len(CARDS)
        assert text.count("<i>Here:</i>") == len(CARDS) == 1 + text.count("<i>Paper:</i>")
        assert "<i>Here:</i> not run" not in text

    def test_epochs_are_of_the_verdict(self, text):
        assert "the paper’s MLP, 80 epochs (paper: 80), accuracy" in text
        assert "LeNet-5, 6 epochs (paper: 25), accuracy" in text
        assert "EfficientNet-Lite0 (paper: ResNet-50), accuracy" in text  # not trained here

    def test_answers_fit_the_kept_verdicts(self, text, kept_verdicts):
        for word, phrase in (("contradicted", "written for"), ("not run", "On “")):
            assert phrase not in text
            assert front.cards(kept_verdicts.assign(verdict=word)).count(phrase) == len(CARDS)
