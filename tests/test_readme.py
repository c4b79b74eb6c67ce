"""The commands in the README and on the pages are ones that there are."""

import itertools
import re
import shlex

import click
import pytest

from suite import cli
from suite.book.pages import headline_rows, headline_table
from suite.evidence.report import all_verdicts
from suite.evidence.results import load_results
from suite.notebooks import all_parameters, chapters, parameters, profiles, source
from suite.papers import side_by_side
from suite.papers import side_by_side_tables as tables
from suite.paths import ROOT

PROGRAM = "python -m suite "
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]
LINES = [
    line.removeprefix("$ ").removesuffix(" &")
    for page in PAGES
    for block in CONSOLE.findall(page.read_text(encoding="utf-8"))
    for line in block.splitlines()
]
INLINE = [
    command
    for page in PAGES
    for command in re.findall(r"`((?:\.venv/bin/)?python -m suite [a-z][^`]*)`", page.read_text())
]
COMMANDS = sorted({line.partition(PROGRAM)[2] for line in LINES + INLINE if PROGRAM in line})
QUICK = [["list"], ["run", "--help"], ["book", "--help"], ["serve", "--help"]]


def test_there_are_commands():
    assert len(COMMANDS) >= 8
    known = ("python -m suite", "git", "make", "papermill", "pip", "dask")
    assert all(line.startswith(known) for line in LINES)


def parse(words):
    """Parse a command line without running it; return what it gives to the command."""
    name, command, rest = cli.app.resolve_command(click.Context(cli.app), words)
    return name, command.make_context(name, list(rest)).params


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line):
    name, values = parse(shlex.split(line))
    if name == "run":
        assert set(values["chapters"] or []) <= set(chapters())
        for chapter in values["chapters"] or chapters():
            assert values["profile"] in profiles(chapter)
            for parameter, _ in values["parameter"]:
                assert parameter in parameters(chapter)


@pytest.mark.parametrize("line", ["suite rnu", "suite run --profil laptop", "suite run -p x"])
def test_a_wrong_command_is_refused(line, monkeypatch):
    monkeypatch.setattr("sys.argv", shlex.split(line))
    with pytest.raises(SystemExit, match="2"):
        cli.main()


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_quick_command_runs(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["suite", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("papermill")])
def test_papermill_gets_parameters_that_there_are(line):
    words = shlex.split(line)
    assert (ROOT / words[1]).exists()
    chapter = words[1].removeprefix("notebooks/").removesuffix(".ipynb")
    for flag, name in itertools.pairwise(words):
        if flag == "-p":
            assert name in parameters(chapter)
        if flag == "-f":
            assert (ROOT / name).exists()


@pytest.mark.parametrize("line", [line for line in LINES if "make " in line])
def test_make_has_the_target(line):
    target = line.partition("make ")[2].split()[0]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_map_of_the_readme_names_what_there_is():
    text = (ROOT / "README.md").read_text()
    block = re.search(r"## The map\n\n```\n(.*?)```", text, re.DOTALL)[1]
    for line in block.splitlines():
        for name in line.split("  ")[0].split(","):
            assert (ROOT / name.strip()).exists(), name


def test_the_headlines_are_those_of_the_kept_results():
    text = (ROOT / "README.md").read_text()
    pattern = r"<!-- headlines:start -->\n(.*)\n<!-- headlines:end -->"
    table = re.search(pattern, text, re.DOTALL)[1]
    rows = headline_rows(all_verdicts(kept_only=True))
    assert table == headline_table(rows, linked=False), "run: python -m suite judge"
    assert "results/headlines.svg" in text


def test_the_hours_of_workstation_are_those_that_it_took():
    runs = [load_results(chapter, "workstation").provenance for chapter in chapters()]
    hours = [run["seconds"] / 3600 / 2 for run in runs if run.get("seconds")]
    assert len(hours) >= 5
    assert 2 <= min(hours) < 3
    assert 10 < max(hours) <= 11
    for file in (ROOT / "README.md", ROOT / "book" / "how_to_read.md"):
        assert "2 to 11 h a chapter on 2 cores" in file.read_text()


def test_the_first_page_has_the_epochs_of_the_profiles():
    text = (ROOT / "book" / "index.md").read_text()
    panels = profiles("gradient_regularisation")["workstation"]["panels"]
    digits, articles, residual, photographs, *_ = panels
    assert residual["data"] == "mnist"
    assert residual["epochs"] == digits["epochs"]
    assert articles["epochs"] == digits["epochs"]
    assert f"MNIST, {digits['epochs']} epochs" in text
    assert f"photographs of 64 × 64 pixels, {photographs['epochs']} epochs" in text


def test_what_the_first_page_and_the_readme_say_of_side_by_side_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("side_by_side", "workstation")
    p = all_parameters("side_by_side", profiles("side_by_side")["workstation"])
    panel, *_ = side_by_side.panels(p)
    rows = kept.frame.query("data == @panel.data")
    measures = side_by_side.measures(panel)
    cells = tables.compared(rows, measures)
    found = tables.guide(cells, measures, {}).set_index("if you want")["take"]
    assert found["higher accuracy, attacked"].startswith("PGD training")
    assert found["lower max-sensitivity"].startswith("SoftPlus")
    assert found["higher accuracy, corruptions"].startswith("none")
    assert "(12 of 12 means are better" in found["higher accuracy, corruptions"]
    assert f"attacks of radius {255 * panel.epsilon:.0f}/255 PGD training" in text
    worse, _ = tables.harm(cells, measures)
    calibration = cells.query("measure == 'calibration' and stands and matters and deviations < 0")
    penalised = [method for method in calibration["method"] if method in side_by_side.PENALTIES]
    assert (len(penalised), len(side_by_side.PENALTIES)) == (4, 9)
    standing = cells.query("measure == 'calibration' and stands and deviations < 0")["method"]
    assert len({*standing} & {*side_by_side.PENALTIES}) == 7
    assert "seven of nine penalties worsen calibration, four of them by a size that matters" in text
    assert {*standing} - {*side_by_side.PENALTIES} == {"adversarial"}  # "so does PGD training"
    assert worse.count("calibration error") == len(calibration)
    assert f"{panel.epochs} epochs on {panel.n_train:,} images, {len(panel.seeds)} networks" in text
    assert cells["method"].nunique() == 12

    def ends(measure, method):
        cell = cells.query("measure == @measure and method == @method").iloc[0]
        return f"from {cell['base']:.2f} to {cell['mean']:.2f}"

    assert f"PGD training raises accuracy {ends('attacked', 'adversarial')}" in text
    assert f"PGD training against attacks (accuracy {ends('attacked', 'adversarial')})" in text
    to = ends("attacked", "input_gradient").split()[-1]
    assert f"the penalty on the input gradient to {to};" in text
    assert f"(max-sensitivity {ends('sensitivity', 'softplus')})" in text
    shown = kept.frame.query("data == 'resized:imagenette160:32'")
    again = tables.repeated(cells, tables.compared(shown, measures), measures)
    same, standing = re.search(r"Of (\d+) .* (\d+) have the same sign", again).group(2, 1)
    both = re.search(r"(\d+) of them stand there, too", again).group(1)
    said = f"pixels, {same} of {standing} differences that stand have the same sign, {both} of them"
    assert f"photographs of 32 × 32 {said} stand there" in text
    assert "0 stand there with the other sign." in again
    page = source("side_by_side").read_text()
    assert "better accuracy, attacked (PGD training), max-sensitivity (SoftPlus)" in again
    assert "of the gains against attacks only that of PGD training stands" in page
    assert "change of the gradient by noise (SoftPlus)" in again
    assert "share on one image of four (L1 on class maps, Top-GAP with L1)" in again
    costs = tables.lost(shown).set_index(["method", "strength"])["lost"]
    here = tables.lost(rows).set_index(["method", "strength"])["lost"]
    ends = (100 * here["top_gap", 1.0], 100 * costs["top_gap", 1.0])
    assert "1 costs {:.1f} points here and {:.0f} on photographs".format(*ends) in page
    of_photographs = tables.guide(tables.compared(shown, measures), measures, {})
    taken = of_photographs.set_index("if you want")["take"]
    assert taken["higher accuracy, attacked"].startswith("PGD training")
    assert taken["lower max-sensitivity"].startswith("SoftPlus")
    assert ": −0.39 [" in tables.price(rows, "adversarial", "input_gradient")
    assert "the landscape target is ten times as strong as on" in source("side_by_side").read_text()
    target = [p["panels"][n]["chosen"]["target"] for n in (0, 1)]
    assert target[1] == 10 * target[0]
    chosen = rows.query("metric == 'choice' and chosen").pivot(
        index="seed", columns="method", values="value"
    )
    spread = chosen.rsub(chosen["none"], axis=0).drop(columns="none").var().mean() ** 0.5
    assert f"{spread:.3f}" == "0.005"
    assert "costs of single networks vary by half a point" in source("side_by_side").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "PGD training against attacks, SoftPlus activations for steady maps." in readme
