"""The commands in the README and on the pages are ones that there are."""

import itertools
import re
import shlex

import click
import pytest

from benchmarks import tables as benchmarks
from suite import cli
from suite.book.pages import headline_rows, headline_table
from suite.data import load_data
from suite.evidence.headlines import in_short
from suite.evidence.report import all_verdicts
from suite.evidence.results import load_results
from suite.evidence.statistics import Interval, mean_interval
from suite.evidence.tables import interval_text, select
from suite.notebooks import all_parameters, chapters, parameters, profiles, source
from suite.papers import gradient_regularisation as paper
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
    steadied = rows.set_index("claim").loc["input-gradient-steadies-maps"]
    assert steadied["verdict"] == "no such effect"
    assert "at one, *Side by side* sees none" in (ROOT / "book" / "index.md").read_text()
    assert "results/headlines.svg" in text


def test_what_the_first_page_says_in_words_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    rows = headline_rows(all_verdicts(kept_only=True)).set_index("claim")
    leakage = rows.loc["leakage-suppressed"]
    assert leakage["on"].startswith("BlockMNIST")
    faithful = rows.loc["faithfulness-rises-on-mnist"]
    kept = load_results("gradient_regularisation", "workstation")
    rises = kept.verdicts[kept.verdicts["claim"] == "faithfulness-of-deeplift-rises-on-mnist"]
    rises = rises.set_index(["data", "network"])
    for where, name in (
        (("fashion_mnist", "lenet5"), ""),
        (("mnist", "resnet"), " with the ResNet"),
    ):
        row = rises.loc[where]
        ends = "{estimate:.2f} [{low:.2f}, {high:.2f}]".format(**row)
        assert f"MNIST{name} ({ends})" in text
        assert row["verdict"] == "holds"
    assert rises.loc[("mnist", "lenet5"), "verdict"] == "open"
    own = select(kept.verdicts, data="mnist", network="lenet5").set_index("claim")
    own = own.loc[faithful.name]
    number = interval_text(Interval(*own[["estimate", "low", "high"]]))
    assert (
        f"on MNIST with LeNet-5 (rank correlation with the strength {number}, by the sign" in text
    )
    assert f"maps of the gradient there** (rank correlation with the strength {number})" in text
    assert f"MNIST, 6 epochs, {faithful['n']:.0f} networks, and" in text
    lipschitz = rows.loc["lipschitz-falls"]
    said = in_short("gradient_regularisation", kept.verdicts, kept.frame)
    assert "goes from 0.53 (lowest third of α) to 0.2 (highest)" in said
    assert "on all five, on MNIST with LeNet-5 from 0.53 in the weakest third to 0.2 in" in text
    assert "(Lipschitz constant on MNIST with LeNet-5 from 0.53 to 0.2)" in text
    panels = (("resized:imagenette160:64", "resnet"), ("fashion_mnist", "lenet5"))
    panels += (("mnist", "resnet"), ("cifar10-jpeg", "resnet"))
    photographs, fashion, digits, cifar = (
        select(kept.verdicts, data=data, network=network).set_index("claim")
        for data, network in panels
    )
    of_noise = ["max-sensitivity-falls", lipschitz.name]
    for others in (photographs, fashion, digits, cifar):
        assert set(others.loc[of_noise, "verdict"]) == {"holds"}
    assert f"64 × 64 pixels, 8 epochs, {photographs.loc[of_noise, 'n'].max():.0f} networks." in text
    assert f"small ResNets, MNIST, 6 epochs, {digits.loc[of_noise, 'n'].max():.0f} networks" in text
    assert f"Fashion-MNIST, {fashion.loc[of_noise, 'n'].max():.0f};" in text
    assert f"encoded again), 8 epochs, {cifar.loc[of_noise, 'n'].max():.0f} networks, and" in text
    readings = paper.readings(kept.frame).set_index(["map", "score", "on"])["ρ, pixels"]
    on = "cifar10-jpeg with ResNet (workstation)"
    gradient, deeplift = (
        readings["input gradient", "logit", on],
        readings["DeepLIFT", "logit", on],
    )
    assert f"and on CIFAR-10 it is {gradient}." in text
    assert f"and on CIFAR-10 ({deeplift.replace('+', '')}; small" in text
    on = "imagenette160 (64 px) with ResNet (workstation)"
    assert "[−0." in readings["DeepLIFT", "logit", on]  # open
    gap = fashion.loc["faithfulness-similar-on-fashion-and-kuzushiji"]
    interval = f"{gap['estimate']:.2f} [{gap['low']:.2f}, {gap['high']:.2f}]"
    # The claim is in the sign of the printed formula, the page in that of the headline.
    assert gap["low"] > 0
    found = paper.faithfulness(kept.frame, "logit_gradient")
    found = select(found, data="fashion_mnist", over_regularised=False)
    value = f"{found['value'].corr(found['alpha'], method='spearman'):.2f}".replace("-", "−")
    assert f"on Fashion-MNIST the correlation is {value}, lower by {interval}" in text
    steadier = rows.loc[["max-sensitivity-falls", lipschitz.name]]
    assert [faithful["verdict"], *steadier["verdict"]] == ["no such effect", "open", "holds"]
    assert set(steadier["n"]) == {faithful["n"]}
    assert leakage["verdict"] == "holds"
    assert rows.loc["l2-robustness-above-input-gradient", "verdict"] == "opposite"


def test_the_hours_of_workstation_are_those_that_it_took():
    runs = [load_results(chapter, "workstation").provenance for chapter in chapters()]
    hours = [run["seconds"] / 3600 / 2 for run in runs if run.get("seconds")]
    assert len(hours) >= 5
    assert 2 <= min(hours) < 3
    assert 9 < max(hours) <= 10
    for file in (ROOT / "README.md", ROOT / "book" / "how_to_read.md"):
        assert "2 to 10 h a chapter on 2 cores" in file.read_text()


def test_the_first_page_has_the_epochs_of_the_profiles():
    text = (ROOT / "book" / "index.md").read_text()
    panels = profiles("gradient_regularisation")["workstation"]["panels"]
    digits, articles, residual, photographs, *_ = panels
    assert residual["data"] == "mnist"
    assert residual["epochs"] == digits["epochs"]
    assert articles["epochs"] == digits["epochs"]
    assert f"MNIST, {digits['epochs']} epochs" in text
    assert f"photographs of 64 × 64 pixels, {photographs['epochs']} epochs" in text


def test_what_the_first_page_says_of_pilcro_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("pilcro", "desktop")
    rows = kept.verdicts.query("data == 'digits-anywhere'").set_index("claim")
    (panel,) = [
        p for p in profiles("pilcro")["desktop"]["panels"] if p["data"] == "digits-anywhere"
    ]
    n_train = len(load_data("digits-anywhere").train.labels)
    assert f"three blocks, {panel['epochs']} epochs on {n_train:,} digits anywhere" in text
    names = ["target-penalty-flattens"]
    names += ["target-10-is-more-accurate", "more-accurate-under-corruptions"]
    names += ["target-1-is-more-accurate"]
    assert rows.loc[names, "verdict"].tolist() == [
        *("holds", "opposite", "opposite", "no such effect")
    ]
    assert set(rows.loc[names, "n"]) == {6}
    _, _, corrupted, _ = rows.loc[names, "estimate"]
    ends = (rows.loc[name, ["estimate", "low", "high"]] for name in names)
    factor, lost, _, mild = (interval_text(Interval(*values)) for values in ends)
    assert f"fall to {factor} of what they are without" in text
    centred = kept.verdicts.query("data == 'digits-centred'").set_index("claim")
    flatter, accurate = (centred.loc[name] for name in names[:2])
    ends = interval_text(Interval(*flatter[["estimate", "low", "high"]]))
    assert f"differences fall to {ends}, and accuracy is {accurate['verdict']};" in text
    mildly = centred.loc["target-1-is-more-accurate"]
    assert (mildly["verdict"], round(mildly["estimate"], 3)) == ("opposite", -0.005)
    assert lost == "−0.026 [−0.036, −0.015]"
    assert f"{lost} on digits anywhere, −{-corrupted:.2f} under corruptions there)," in text
    assert f"by the paper’s alone ({factor} times on digits anywhere)" in text
    assert f"{n_train:,} digits on canvases" in text
    assert "(by 0.026 [0.015, 0.036])" in text
    assert mild == "−0.0012 [−0.0051, 0.0027]"
    assert "nothing is gained and nothing lost (−0.001 [−0.005, 0.003])" in text
    workstation = load_results("pilcro", "workstation")
    of_cifar = workstation.verdicts.query("data == 'cifar10-jpeg'").set_index("claim")
    flatter, accurate = (of_cifar.loc[name] for name in names[:2])
    assert (flatter["verdict"], accurate["verdict"]) == ("holds", "opposite")
    assert {flatter["n"], accurate["n"]} == {10}
    ends = (
        interval_text(Interval(*row[["estimate", "low", "high"]])) for row in (flatter, accurate)
    )
    factor, lost = ends
    assert f"by all three measures** (differences of neighbours {factor} times)" in text
    assert f"**accuracy is lost** ({lost} on CIFAR-10" in text
    slower = of_cifar.loc["training-is-faster"]
    assert slower["verdict"] == "opposite"
    behind = interval_text(Interval(*slower[["estimate", "low", "high"]]))
    assert f"and training is slower** ({behind} after the first epochs on CIFAR-10)" in text
    frame = workstation.frame
    clean = select(frame, metric="accuracy", data="cifar10-jpeg", epochs=0)
    clean = clean.groupby("model")["value"].mean()
    both = f"accuracy goes from {clean['none']:.3f} to {clean['target 10']:.3f} ({lost}), and"
    assert both in text
    rows_of = {"more-robust-but-for-noise": "holds"}
    rows_of |= {"more-accurate-under-corruptions": "opposite"}
    assert of_cifar.loc[list(rows_of), "verdict"].to_dict() == rows_of
    left, right = (
        interval_text(Interval(*of_cifar.loc[name, ["estimate", "low", "high"]]))
        for name in rows_of
    )
    assert f"more of the probability is left there ({left} times, which less" in text
    assert f"noise {left} times as much of the probability is left (accuracy under" in text
    assert f"corruptions: {right}, opposite;" in text
    lite = select(frame, metric="centre_to_rim", network="efficientnet_lite0")
    network, paths, images = (f"{x:.1f} times" for x in lite["value"])
    assert lite["model"].tolist() == ["as it is", "its paths", "the images"]
    assert f"the middle matters {network} as much as the rim; its paths alone" in text
    assert f"alone would give {paths}" in text
    chapter = (ROOT / "notebooks" / "pilcro.ipynb").read_text()
    assert f"matters {network} as much as its rim. Its paths alone would give {paths}" in chapter
    assert f"edges of the photographs are {images} as strong there" in chapter
    assert rows.loc["training-is-faster", "verdict"] == "open"
    assert f"by {-corrupted:.2f} under corruptions" in text
    accuracy = kept.frame.query("data == 'digits-anywhere' and metric == 'accuracy'")
    mean = accuracy.groupby("model")["value"].mean()
    assert f"from {mean['none']:.3f} to {mean['target 10']:.3f}" in text


def test_what_the_first_page_says_of_marginal_density_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("marginal_density", "workstation")
    rows = kept.verdicts.query("data == 'blockmnist' and network == 'mlp'").set_index("claim")
    p = all_parameters("marginal_density", profiles("marginal_density")["workstation"])
    first, swept = rows.loc["leakage-suppressed"], rows.loc["leakage-below-input-gradient"]
    epochs, n = p["block_panels"][0]["epochs"], first["n"]
    assert f"MLP on BlockMNIST, {epochs} epochs, {n} networks of each kind" in text
    pgd, fgsm = rows.loc[
        ["pgd-training-suppresses-leakage", "fgsm-training-leaves-leakage"], "estimate"
    ]
    fall = f"Leakage falls to {first['estimate']:.2f} of that without a penalty. "
    assert f"{fall}(PGD training leaves {pgd:.2f} of it, FGSM training {fgsm:.2f}.)" in text
    share = rows.loc["share-of-leakage-suppressed", "estimate"]
    sizes = f"({first['estimate']:.2f} times; {share:.2f} as a share of the map)"
    assert f"than with no penalty** {sizes}" in text
    assert f"accuracy {p['sweeps'][0]['epochs']} epochs, {swept['n']} networks;" in text
    assert f"MLPs, {n} and {swept['n']} of each kind" in text
    ends = interval_text(Interval(*swept[["estimate", "low", "high"]]))
    assert f"it is {ends} of that with the penalty on the input gradient (published 0.72;" in text
    assert swept["verdict"] == "open"
    assert f"(published 0.72; p = {swept['p']:.3f}, open after correction for ten" in text
    better = rows.loc[["insertion-above-input-gradient", "salient-pixels-matter-more"]]
    better = better[better["verdict"] == "holds"][["estimate", "low", "high"]].to_numpy(float)
    insertion, salient = (interval_text(Interval(*values)) for values in better)
    assert f"score in the insertion game (+{insertion}); **in" in text
    assert f"salient pixels matter more ({salient})." in text
    steady = rows.loc["gradient-steadier-under-noise", ["estimate", "low", "high"]].astype(float)
    assert f"is open after correction ({interval_text(Interval(*steady))} times, a mean" in text
    cure = rows.loc["leakage-below-cure"]
    assert (cure["verdict"], cure["n"], round(1 / cure["estimate"], 1)) == ("opposite", 10, 0.5)
    robust = rows.loc["l2-robustness-above-input-gradient"]
    lower = f"{-robust['estimate']:.3f} [{-robust['high']:.3f}, {-robust['low']:.3f}]"
    assert f"accuracy under PGD is lower by {lower}" in text
    assert f"in MLPs**: leakage {ends} times (published 0.72; open after correction)," in text
    of_resnet = kept.verdicts.query("data == 'blockmnist' and network == 'resnet'")
    of_resnet = of_resnet.set_index("claim")[["estimate", "low", "high"]].astype(float)
    name = "{}-input-gradient-in-convolutional-networks".format
    less, pgd = (
        interval_text(Interval(*of_resnet.loc[name(what)]))
        for what in ("leakage-below", "l2-robustness-above")
    )
    assert f"in a small ResNet less leakage** ({less} times; published 0.86)" in text
    assert f"In a small ResNet leakage is {less} of that with the penalty" in text
    assert f"no difference is seen under PGD ({pgd})." in text
    of_vgg = kept.verdicts.query("network == 'vgg11'").set_index("claim")
    of_vgg = of_vgg[["estimate", "low", "high"]].astype(float)
    ends = interval_text(Interval(*of_vgg.loc[name("leakage-below")]))
    assert f"**in VGG-11 not** ({ends} times; published 0.76)" in text
    assert f"In VGG-11 with a quarter of the filters it is {ends} of that (published 0.76)" in text
    assert of_vgg.loc["share-of-leakage-suppressed", "low"] > 1  # "a larger share leaks"
    assert f"PGD −{-robust['estimate']:.3f} [−{-robust['low']:.3f}, −{-robust['high']:.3f}]" in text
    tuned = kept.verdicts.query("data == 'resized:imagenette160:96'").set_index("claim")
    names = ["fine-tuned-above-input-gradient-under-auto-pgd", "fine-tuned-above-input-gradient"]
    of_both = (tuned.loc[n, ["estimate", "low", "high"]].astype(float) for n in names)
    auto, pgd = (interval_text(Interval(*e)) for e in of_both)
    assert (
        f"at equal clean accuracy ({auto}), and gains nothing over it under PGD-20 ({pgd})" in text
    )
    assert tuned.loc[names, "verdict"].tolist() == ["opposite", "no such effect"]
    assert f"{tuned.loc[names[0], 'n']} networks of each" in text
    assert robust["verdict"] == "opposite"


def test_what_the_first_page_says_of_top_gap_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("top_gap", "workstation")
    rows = kept.verdicts.query("data == 'fashion_mnist'").set_index("claim")
    panel, *_ = profiles("top_gap")["workstation"]["panels"]
    assert len(panel["backbone"]["blocks"]) == 3
    assert f"three blocks, Fashion-MNIST, {panel['epochs']} epochs, 6 networks" in text
    names = ["clean-accuracy-unchanged", "pgd-accuracy-rises", "auto-attack-accuracy-rises"]
    names += ["l1-alone-adds-to-auto-attack-accuracy"]
    assert rows.loc[names, "verdict"].tolist() == ["holds", "holds", "holds", "holds"]
    assert set(rows.loc[names, "n"]) == {6}
    main = kept.frame[kept.frame["main"] & (kept.frame["data"] == "fashion_mnist")]
    pgd, auto, l1 = (rows.loc[name] for name in names[1:])
    auto, l1 = (f"{r['estimate']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for r in (auto, l1))
    ends = "{estimate:.2f} [{low:.2f}, {high:.2f}]".format(**pgd)
    assert f"{ends} more of the predictions survive the paper's PGD" in text
    assert f"and {auto} more AutoAttack" in text
    assert f"two radii: +{auto}; L1 alone +{l1}" in text
    assert f"**on Fashion-MNIST more do** (+{ends})" in text
    unchanged = select(main, metric="robust_accuracy", counts="unchanged", battery="none")
    strong = select(unchanged, attack="pgd", steps=20).groupby("variant")["value"].mean()
    assert f"alone brings {strong['l1'] - strong['none']:.2f} and {l1}" in text
    assert rows.loc["more-than-l1-alone-under-auto-attack", "verdict"] == "open"
    clean = select(main, metric="accuracy", test="own").groupby("variant")["value"].mean()
    assert {f"{clean[name]:.2f}" for name in ("none", "fpn+l1+pool")} == {"0.91"}
    assert "*Fashion-MNIST*: clean accuracy stays at 0.91" in text
    left = select(main, battery="auto", counts="unchanged")
    left = left[left["epsilon"] > 0.03].groupby("variant")["value"].mean()
    assert f"leaves Top-GAP {left['fpn+l1+pool']:.2f}" in text
    assert f"the unmodified network {left['none']:.2f}, a difference that is open" in text
    assert rows.loc["auto-attack-accuracy-rises-at-8-255", "verdict"] == "open"


def test_what_the_first_page_says_of_cifar10_with_top_gap_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("top_gap", "workstation")
    rows = kept.verdicts.query("data == 'cifar10-jpeg'").set_index("claim")
    words = {
        "clean-accuracy-unchanged": "holds",
        "pgd-accuracy-rises": "no such effect",
        "auto-attack-accuracy-rises-at-1-255": "open",
        "l1-alone-keeps-accuracy": "opposite",
    }
    assert rows.loc[list(words), "verdict"].tolist() == list(words.values())
    assert rows.loc[list(words), "n"].tolist() == [12, 12, 6, 6]
    ends = (rows.loc[name, ["estimate", "low", "high"]].astype(float) for name in words)
    clean, pgd, auto, l1 = (interval_text(Interval(*e)) for e in ends)
    assert f"(of all predictions {pgd} more survive PGD with 20 steps; published +0.52)" in text
    main = select(kept.frame, data="cifar10-jpeg", main=True, metric="accuracy", test="own")
    mean = main.groupby("variant")["value"].mean()
    both = f"{mean['none']:.3f} to {mean['fpn+l1+pool']:.3f}"
    assert (
        f"clean accuracy goes from {both} ({clean}, less than the point that would count)" in text
    )
    assert f"The paper's PGD leaves {pgd} more of the predictions (no such effect" in text
    assert f"AutoAttack at 1/255 {auto} more (open)" in text
    assert f"L1 alone costs accuracy ({l1})" in text


def test_what_the_first_page_says_of_article_canvases_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    rows = load_results("top_gap", "workstation").verdicts.query("data == 'article_canvas'")
    rows = rows.set_index("claim")
    (panel,) = (
        p for p in profiles("top_gap")["workstation"]["panels"] if p["data"] == "article_canvas"
    )
    assert f"articles ({panel['epochs']} epochs on {panel['n_train']:,})" in text
    words = {
        "pgd-accuracy-rises": "holds",
        "auto-attack-accuracy-rises": "holds",
        "auto-attack-accuracy-rises-at-8-255": "no such effect",
        "l1-alone-adds-to-auto-attack-accuracy": "holds",
        "more-than-l1-alone-under-auto-attack": "opposite",
        "accuracy-on-other-backgrounds-rises": "no such effect",
        "class-maps-follow-the-object": "opposite",
        "pooling-makes-class-maps-follow-the-object": "opposite",
    }
    assert rows.loc[list(words), "verdict"].tolist() == list(words.values())
    assert rows.loc[list(words), "n"].tolist() == [12] * 7 + [6]
    ends = (rows.loc[name, ["estimate", "low", "high"]] for name in words)
    texts = (interval_text(Interval(*e)) for e in ends)
    pgd, auto, at_8, l1, beyond, others, follow, pooling = texts
    assert f"more AutoAttack (at 8/255 alone {at_8}, no such effect), and {l1}" in text
    trained = rows.loc[["below-fgsm-training", "clean-accuracy-above-fgsm-training"]]
    assert set(trained["verdict"]) == {"holds"}
    assert set(trained["n"]) == {6}
    more, price = trained["estimate"].abs()
    unchanged = f"leaves {more:.2f} more predictions unchanged than Top-GAP under APGD"
    assert f"{unchanged}, and costs {price:.2f}" in text
    trained = rows.loc[["below-adversarial-training", "clean-accuracy-above-adversarial-training"]]
    assert set(trained["verdict"]) == {"holds"}
    assert "PGD training {:.2f} and {:.2f}.".format(*trained["estimate"].abs()) in text
    dose = rows.loc["more-than-l1-alone-at-the-same-dose", ["estimate", "low", "high"]]
    assert f"Top-GAP keeps {interval_text(Interval(*dose))} more than L1 alone at one" in text
    assert f"on cluttered canvases*: {pgd} more survive PGD, {auto} more AutoAttack" in text
    assert f"and {l1} more by the L1 penalty alone" in text
    assert f"add nothing at the same strength ({beyond}, opposite)" in text
    assert f"other backgrounds gains nothing that matters ({others}, no such effect)" in text
    assert f"unmodified network ({follow} of overlap beyond" in text
    assert f"(Top-GAP less these: {pooling})" in text
    assert rows.loc["class-maps-are-sparser", "verdict"] == "holds"


def test_what_the_first_page_says_of_photographs_with_top_gap_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("top_gap", "workstation")
    rows = kept.verdicts.query("data == 'resized:imagenette160:128'").set_index("claim")
    words = {
        "clean-accuracy-of-table-3": "holds",
        "fgsm-accuracy-rises": "no such effect",
        "pgd-40-accuracy-rises": "open",
        "l1-alone-helps": "holds",
        "l1-alone-keeps-accuracy": "holds",
        "pooling-adds-to-fgsm-accuracy": "opposite",
        "pyramid-adds-to-fgsm-accuracy": "opposite",
    }
    assert rows.loc[list(words), "verdict"].tolist() == list(words.values())
    assert set(rows.loc[list(words), "n"]) == {6}
    p = rows.loc["clean-accuracy-of-table-3", "p"]
    assert 0.025 < p < 0.05  # not decided by a second look
    ends = (rows.loc[name, ["estimate", "low", "high"]].astype(float) for name in words)
    clean, fgsm, pgd, l1, kept_by_l1 = (interval_text(Interval(*next(ends))) for _ in range(5))
    pooling, pyramid = (interval_text(Interval(*-e.iloc[[0, 2, 1]])) for e in ends)
    main = {"data": "resized:imagenette160:128", "metric": "accuracy", "main": True}
    means = select(kept.frame, test="own", **main).groupby("variant")["value"].mean()
    accuracy = "from {none:.3f} to {fpn+l1+pool:.3f}".format(**means)
    assert f"fine-tuned: clean accuracy goes {accuracy} ({clean}, less than the point" in text
    assert f"point that would count, p = {p:.3f} at the second look); at ε = 1/255" in text
    lost = rows.loc["accuracy-under-corruptions-rises"]
    assert lost["verdict"] == "opposite"
    ends = interval_text(Interval(*lost[["estimate", "low", "high"]].astype(float)))
    assert f"Under corruptions Top-GAP loses ({ends})." in text
    strong = ["auto-attack-accuracy-rises", "l1-alone-adds-to-auto-attack-accuracy"]
    strong = rows.loc[[f"{name}-at-half-of-1-255" for name in strong]]
    assert strong["verdict"].tolist() == ["open", "holds"]
    strong = strong[["estimate", "low", "high"]].astype(float).to_numpy()
    auto, auto_l1 = (interval_text(Interval(*row)) for row in strong)
    assert f"gained under FGSM ({fgsm}), PGD is open ({pgd}), and so is AutoAttack at" in text
    assert f"radius ({auto}; L1 alone {auto_l1}; three networks of each)." in text
    above_l1 = rows.loc["more-than-l1-alone-under-auto-attack-at-half-of-1-255"]
    assert above_l1["verdict"] == "open"  # the card: no gain over L1, nor on photographs
    where = {"metric": "robust_accuracy", "battery": "none", "counts": "unchanged", "main": True}
    where |= {"data": main["data"], "epsilon": 0.00392157}
    left = select(kept.frame, **where).pivot_table(
        index=["attack", "seed"], columns="variant", values="value"
    )
    by_l1 = interval_text(mean_interval((left["l1"] - left["none"]).loc["pgd"].dropna()))
    assert f"brings {l1} under FGSM and {by_l1} under PGD, at an acc" in text
    assert f"accuracy that is kept ({kept_by_l1})" in text
    left = left.loc["fgsm"].mean()
    assert f"too ({left['fpn+l1+pool'] - left['fpn+pool']:.3f}), but the pyramid costs" in text
    assert f"costs {pyramid} beside pooling and L1, and costs without L1 as well" in text
    assert left["fpn"] < left["none"]
    assert left["fpn+pool"] < left["pool"]
    assert f"pooling costs {pooling} beside pyramid and L1." in text
    clean = select(kept.frame.query("data == 'resized:imagenette160:64'"), metric="accuracy")
    clean = clean[clean["main"]].groupby("variant")["value"].mean().map("{:.3f}".format)
    found = "(accuracy {none}; with Top-GAP {fpn+l1+pool}, with L1 alone {l1})".format(**clean)
    assert f"on 64 pixels {found} three" in text
    beside = f"under FGSM gains {rows.loc['l1-alone-helps', 'estimate']:.2f}, Top-GAP nothing"
    assert beside in source("side_by_side").read_text()


def test_what_the_first_page_says_of_digit_canvases_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    rows = load_results("top_gap", "desktop").verdicts.query("data == 'digit_canvas'")
    rows = rows.set_index("claim")
    p = all_parameters("top_gap", {})
    assert f"digits ({p['epochs']} epochs on {p['panels'][0]['n_train']:,} digits)" in text
    names = ["pgd-accuracy-rises", "auto-attack-accuracy-rises"]
    names += ["l1-alone-adds-to-auto-attack-accuracy", "accuracy-on-other-backgrounds-rises"]
    assert set(rows.loc[names, "verdict"]) == {"holds"}
    assert set(rows.loc[names, "n"]) == {6}
    pgd, auto, l1, others = rows.loc[names, "estimate"]
    assert f"{pgd:.2f} more survive PGD, {auto:.3f} more AutoAttack, and {l1:.2f} more" in text
    main = select(
        load_results("top_gap", "desktop").frame, metric="accuracy", main=True, test="own"
    )
    clean = main.groupby("variant")["value"].mean()
    of_clean = f"of which {clean['fpn+l1+pool'] - clean['none']:.2f} are clean accuracy"
    assert f"accuracy on other backgrounds rises by {others:.2f}, {of_clean}" in text
    assert rows.loc["overlap-with-masks-rises", "verdict"] == "withdrawn"


def test_what_the_first_page_says_of_the_second_order_is_what_was_kept():
    text = (ROOT / "book" / "index.md").read_text()
    kept = load_results("high_order_saliency", "workstation")
    main = {"data": "imagenet-samples", "network": "efficientnet_lite0"}
    rows = select(kept.verdicts, **main).set_index("claim")
    shares = select(kept.frame, metric="share", classes="all", **main)
    assert f"one network, {len(shares):,} photographs of ImageNet." in text
    assert f"*On*: {len(shares):,} photographs of ImageNet, one EfficientNet-Lite0" in text
    sure = rows.loc["hessian-nearly-rank-one-when-confident"]
    assert f"Of the {sure['n']:.0f} photographs that it is sure of, nearly all" in text
    ends = "{estimate:.3f} [{low:.3f}, {high:.3f}]".format
    assert f"of the loss's curvature ({ends(**sure)})" in text
    along = rows.loc["eigenvector-parallel-to-gradient-when-confident"]
    assert f"(cosine {ends(**along)})" in text
    alike, differ = (rows.loc[c] for c in ("alike-when-confident", "different-when-unconfident"))
    assert f"alike (mean distance {ends(**alike)}, of at most 1.41)" in text
    unsure = f"For the {differ['n']:.0f} that it is unsure of they differ more"
    assert f"{unsure} ({differ['estimate']:.2f} [{differ['low']:.2f}, {differ['high']:.2f}]" in text
    gain = rows.loc["second-order-raises-the-loss-more-when-unconfident"]
    numbers = f"({gain['estimate']:.2f} times [{gain['low']:.2f}, {gain['high']:.2f}])"
    assert f"same length along the first-order map {numbers}" in text
    assert f"the loss rises {numbers[1:-1]} as much" in text
    assert [r["verdict"] for r in (sure, along, alike, gain)] == ["holds"] * 3 + ["no such effect"]
    groups = rows.loc["groups-improve-insertion"]
    number = ends(**groups).replace("-", "−")
    assert f"tell important pixels no better than the gradient ({number} in insertion)" in text
    assert groups["verdict"] == "no such effect"


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


def test_what_is_said_of_the_fine_tuned_network_is_what_was_kept():
    first, readme = ((ROOT / name).read_text() for name in ("book/index.md", "README.md"))
    page = source("side_by_side").read_text()
    kept = load_results("side_by_side", "workstation")
    p = all_parameters("side_by_side", profiles("side_by_side")["workstation"])
    (panel,) = filter(side_by_side.is_fine_tuned, side_by_side.panels(p))
    rows = kept.frame.query("data == @panel.data")
    cells = tables.compared(rows, side_by_side.measures(panel)).set_index(["measure", "method"])
    step = benchmarks.method_steps(benchmarks.measured("cpu"), benchmarks.FINE_TUNED)
    named = ("adversarial", "l1", "finite_difference")
    attacked = [cells.loc[("attacked", m)] for m in named]
    assert all(cell["stands"] and cell["matters"] and cell["n"] == 6 for cell in attacked)
    gradient = cells.loc[("attacked", "input_gradient")]
    assert not gradient["stands"]
    gain = interval_text(Interval(*gradient[["difference", "low", "high"]].astype(float)), ".3f")
    base, *means = (f"{x:.2f}" for x in (attacked[0]["base"], *(c["mean"] for c in attacked)))
    error = "(error from {base:.2f} to {mean:.2f})".format(**cells.loc[("calibration", "l1")])
    assert f"PGD training raises accuracy under attacks of radius 0.5/255 from {base} to" in first
    assert (
        f"to {means[0]}, an L1 penalty on class maps to {means[1]}, finite differences to "
        f"{means[2]}" in first
    )
    assert f"gradient gains {gain} and costs" in first
    assert f"gradient gains {gain}, which is open" in page
    less = cells.loc[("accuracy", "input_gradient")]
    points = "costs {:.1f} [{:.1f}, {:.1f}] points".format(
        *(-100 * less[end] for end in ("difference", "high", "low"))
    )
    assert points in first
    noisy = rows.query("metric == 'change' and chosen and method == 'none'")["value"].mean()
    assert f"changes by {noisy:.2f} of its size" in page
    assert f"worsens calibration {error}" in first
    assert f"0.5/255 from {base} to {means[0]}, and no cost in clean accuracy was seen" in page
    paid = 100 * cells.loc[("accuracy", "adversarial"), ["difference", "low", "high"]]
    assert "was seen ({:.1f} [{:.1f}, {:.1f}] points)".format(*paid).replace("-", "−") in page
    assert f"takes it to {means[1]} at no further time, and worsens calibration {error}" in page
    assert f"finite differences take it to {means[2]}, at" in page
    found = kept.verdicts[kept.verdicts["claim"].str.startswith("fine-tuned")].set_index("claim")
    assert found.loc["fine-tuned-input-gradient-resists-attacks", "verdict"] == "holds"
    assert f"{found.loc['fine-tuned-input-gradient-resists-attacks', 'p']:.3f}" == "0.028"
    better = rows.query("metric == 'attacked' and chosen").pivot_table("value", "seed", "method")
    gap = mean_interval((better["finite_difference"] - better["input_gradient"]).to_numpy())
    assert f"gain {interval_text(gap, '.2f')} more than double" in page
    early = rows.query("metric == 'attacked' and chosen and seed <= 3")
    early = early.pivot_table("value", "seed", "method").mean()
    assert f"gradient {early['input_gradient'] - early['none']:.3f} (it stood" in page
    moved = cells.loc[("shifted", "l1"), ["difference", "low", "high"]].astype(float)
    assert f"accurate by {interval_text(Interval(*moved), '.3f')}, not after Holm." in page
    corrupted = cells.loc[("corrupted", "adversarial"), ["difference", "low", "high"]]
    assert (
        f"training: {interval_text(Interval(*corrupted.astype(float)), '.3f')}, not after" in page
    )
    cure = [cells.loc[(m, "cure")] for m in ("attacked", "calibration", "accuracy")]
    assert cure[0]["stands"]
    lost = interval_text(Interval(*(-100 * cure[2][["difference", "high", "low"]])), ".1f")
    assert f"CURE takes it to {cure[0]['mean']:.2f}, at" in first
    assert f"at {lost} points and an error of {cure[1]['mean']:.2f}" in first
    said = f"times the time, {lost} points of accuracy and a calibration error of "
    assert f"at {step['cure']:.1f} {said}{cure[1]['mean']:.2f}.**" in page
    for method in ("input_gradient", "density", "adversarial"):
        cell = cells.loc[("calibration", method)]
        assert cell["stands"]
        assert f"{cell['difference']:.2f}" == "0.03"
    assert not cells.loc["accuracy", "stands"].any()
    assert 255 * panel.epsilon == pytest.approx(0.5, abs=0.01)
    assert 255 * panel.chosen["adversarial"] == pytest.approx(0.5, abs=0.011)
    standing = cells[cells["stands"].astype(bool)].index
    resists = {method for measure, method in standing if measure == "attacked"}
    assert {"adversarial", "l1", "finite_difference", "cure"} <= resists
    uneven = {method for measure, method in standing if measure == "flatness"}
    assert uneven == {"adversarial", "finite_difference"}
    assert not any(measure == "shifted" for measure, _ in standing)
    ends = found.loc["fine-tuned-density-resists-more-than-logit", ["estimate", "low", "high"]]
    text = interval_text(Interval(*ends.astype(float)), ".3f")
    assert f"label's logit, at one strength ({text}, the opposite" in page
    assert found.loc["fine-tuned-density-resists-more-than-logit", "verdict"] == "opposite"
    costs = tables.lost(rows).set_index(["method", "strength"])["lost"]
    assert f"costs {100 * costs['top_gap', 1.0]:.1f} points on the half" in page
    assert f"at 0.03 lost {100 * costs['input_gradient', 0.03]:.1f} points on one half" in page
    other = rows.query("metric == 'accuracy' and not chosen").set_index(["method", "strength"])
    lost = other.loc[("none", 0.0), "value"] - other["value"]
    assert f"chooses, {100 * lost['top_gap', 1.0]:.1f} on the other" in page
    assert lost["input_gradient", 0.03] < 0
    half = rows.query("metric == 'accuracy' and method == 'none'").iloc[0]
    known = 196 * half["std"] / half["n"] ** 0.5
    assert f"knows one network's accuracy to ±{known:.1f} points, 95%" in page
    assert panel.n_attacked == 64
    assert f"at {step['adversarial']:.1f} times the time of a step" in page
    assert 0.95 < step["l1"] < 1.05  # "at no further time"
    assert f"to {means[2]}, at {step['finite_difference']:.1f} times the time" in page
    of_top_gap = load_results("top_gap", "workstation").verdicts.query(
        "claim == 'clean-accuracy-of-table-3' and data == 'resized:imagenette160:128'"
    )
    assert set(of_top_gap["verdict"]) == {"holds"}
    (cost,) = (Interval(*row) for row in of_top_gap[["estimate", "low", "high"]].to_numpy())
    assert f"of 128 pixels, at λ = 1 ({interval_text(cost)}; six networks" in page
    assert "fine-tuned: PGD training, at no cost in clean accuracy that was seen" in readme
    assert f"{panel.n_train:,} photographs of 96 × 96 pixels, {len(panel.seeds)} networks" in first
