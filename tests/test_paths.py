"""Folders of own images, wherever a command, a profile or a kernel starts."""

from pathlib import Path

import pytest
import yaml

from suite import notebooks
from suite.chapter import Chapter
from suite.paths import NOTEBOOKS, ROOT, with_whole_paths

NAME = "gradient_regularisation"


def panel(data: str) -> dict[str, object]:
    return {"data": data, "network": "resnet", "epochs": 1, "n_alphas": 1}


class TestFolderOfImages:
    @pytest.fixture(autouse=True)
    def _start(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))

    @pytest.mark.parametrize(
        ("given", "whole"),
        [
            ("imagefolder:photos", "imagefolder:{}/photos"),
            ("imagefolder:~/photos", "imagefolder:{}/home/photos"),
            ("imagefolder:~nobody-of-this-name/x", "imagefolder:{}/~nobody-of-this-name/x"),
            ("imagefolder:/my/photos: 2", "imagefolder:/my/photos: 2"),
            ("resized:imagefolder:photos:32", "resized:imagefolder:{}/photos:32"),
            ("imagefolder:", "imagefolder:"),
            ("a text on imagefolder:photos", "a text on imagefolder:photos"),
        ],
    )
    def test_path_is_whole(self, tmp_path: Path, given: str, whole: str) -> None:
        whole = whole.format(tmp_path)
        assert with_whole_paths(given) == with_whole_paths(whole) == whole
        nested = with_whole_paths({"panels": [{"data": given}], "n": 1, "images": given})
        assert nested == {"panels": [{"data": whole}], "n": 1, "images": whole}

    def test_command_and_kernel_mean_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        changes = {"panels": [panel("imagefolder:photos")]}
        values = notebooks.all_parameters(NAME, notebooks.resolve(NAME, "smoke", changes))
        monkeypatch.chdir(NOTEBOOKS)
        [of_kernel] = Chapter(NAME, values).parameters["panels"]
        assert of_kernel["data"] == f"imagefolder:{tmp_path}/photos"

    def test_kernel_of_its_own_starts_where_it_is(self, tmp_path: Path) -> None:
        values = notebooks.all_parameters(NAME, {"panels": [panel("imagefolder:photos")]})
        [of_kernel] = Chapter(NAME, values).parameters["panels"]
        assert of_kernel["data"] == f"imagefolder:{tmp_path}/photos"

    def test_profile_starts_at_the_project(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "notebooks"
        (folder / "profiles" / NAME).mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_bytes((NOTEBOOKS / f"{NAME}.ipynb").read_bytes())
        values = {"profile": "mine", "panels": [panel("imagefolder:photos")]}
        (folder / "profiles" / NAME / "mine.yml").write_text(yaml.safe_dump(values))
        monkeypatch.setattr(notebooks, "NOTEBOOKS", folder)
        [resolved] = notebooks.resolve(NAME, "mine", {})["panels"]
        assert resolved["data"] == f"imagefolder:{ROOT}/photos"
