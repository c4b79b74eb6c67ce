import contextlib
import sys
import types

import nbformat
import pytest
import yaml

from suite import notebooks
from suite.errors import RunFailed, UsageError
from suite.evidence.claims import load_claims

PARAMETERS = """\
profile: str = "laptop"  # name of the run
alpha_min: float = 1e2  # smallest
n_images: int = 4  # images
seeds: list = [0]  # seeds
"""


def write_chapter(folder, *sources, parameters=PARAMETERS, name="sample"):
    tagged = [(parameters, ["parameters"]), *((s, []) for s in sources)]
    cells = [nbformat.v4.new_code_cell(text, metadata={"tags": tags}) for text, tags in tagged]
    folder.mkdir(exist_ok=True)
    metadata = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.write(notebook, folder / f"{name}.ipynb")
    (folder / "profiles" / name).mkdir(parents=True, exist_ok=True)
    for values in ({"profile": "smoke", "n_images": 2}, {"profile": "laptop"}):
        (folder / "profiles" / name / f"{values['profile']}.yml").write_text(yaml.safe_dump(values))


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    monkeypatch.setattr(notebooks, "NOTEBOOKS", folder)
    monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path / "executed"))
    write_chapter(folder, "print(profile, n_images)")
    return folder


def run(**values):
    return notebooks.run("sample", values, bar=False)


# Neither trains on a GPU: one compares small networks, the other has no units.
WITHOUT_GPU = ("differentiating_a_gradient", "side_by_side")


class TestResolve:
    def test_parameters_have_default_and_help(self, chapter):
        entry = notebooks.parameters("sample")["alpha_min"]
        assert (entry.default, entry.help) == (100.0, "smallest")

    def test_broken_profile_is_named(self, chapter):
        file = chapter / "profiles" / "sample" / "mine.yml"
        for text in ("profile: smoke", "", "a: ["):
            file.write_text(text)
            with pytest.raises(UsageError, match=r"mine\.yml"):
                notebooks.resolve("sample", "mine", {})
            assert notebooks.resolve("sample", "smoke", {})["n_images"] == 2

    def test_changes_go_before_the_profile(self, chapter):
        smoke = {"profile": "smoke", "alpha_min": 100.0, "n_images": 2, "seeds": [0]}
        assert notebooks.resolve("sample", "smoke", {}) == smoke
        assert notebooks.resolve("sample", "smoke", {"n_images": 3})["n_images"] == 3
        assert notebooks.resolve("sample", "laptop", {"alpha_min": 1})["alpha_min"] == 1

    @pytest.mark.parametrize(
        ("chapter_name", "profile", "changes", "message"),
        [
            ("smaple", "smoke", {}, "unknown chapter 'smaple': did you mean 'sample'"),
            ("sample", "laptob", {}, "unknown profile 'laptob': did you mean 'laptop'"),
            ("sample", "smoke", {"n_image": 3}, "'n_image': did you mean 'n_images'"),
            ("sample", "smoke", {"n_images": 2.5}, "n_images: expected int like 4, got 2.5"),
            ("sample", "smoke", {"n_images": True}, "n_images: expected int like 4, got True"),
            ("sample", "smoke", {"profile": 3}, "profile: expected str"),
        ],
    )
    def test_refused_before_a_kernel_starts(self, chapter, chapter_name, profile, changes, message):
        with pytest.raises(UsageError, match=message):
            notebooks.resolve(chapter_name, profile, changes)

    def test_chapters_take_their_own_changes(self, chapter):
        write_chapter(chapter, parameters='profile: str = "laptop"\nwidth: int = 8\n', name="other")
        write_chapter(chapter, name="third")
        names, changes = ["other", "sample"], {"n_images": 3, "width": 4}
        other = {"profile": "laptop+width=4", "width": 4}
        sample = {"profile": "laptop+n_images=3", "n_images": 3, "alpha_min": 100.0, "seeds": [0]}
        assert notebooks.resolve_all(names, "laptop", changes) == {"other": other, "sample": sample}
        with pytest.raises(UsageError, match="'widht': did you mean 'width'"):
            notebooks.resolve_all(names, "laptop", {"widht": 4})
        with pytest.raises(UsageError, match="'width'"):
            notebooks.resolve_all(["sample"], "laptop", {"width": 4})
        with pytest.raises(UsageError, match="n_images: expected int"):
            notebooks.resolve_all(["sample", "third"], "laptop", {"n_images": "many"})

    def test_units_come_from_the_module(self, chapter, monkeypatch):
        assert notebooks.units_of("sample", {}) == []
        module = types.SimpleNamespace(__spec__="not None")
        module.plan = lambda parameters: types.SimpleNamespace(units=lambda: [parameters])
        monkeypatch.setitem(sys.modules, "suite.papers.sample", module)
        (values,) = notebooks.units_of("sample", {"profile": "smoke", "n_images": 2})
        assert values == {"profile": "smoke", "alpha_min": 100.0, "n_images": 2, "seeds": [0]}


class TestChapters:
    @pytest.mark.parametrize("name", notebooks.chapters())
    def test_hold_no_outputs(self, name):
        cells = nbformat.read(notebooks.source(name), as_version=4).cells
        code = [cell for cell in cells if cell.cell_type == "code"]
        assert code
        assert not any(cell.outputs or cell.execution_count for cell in code)

    @pytest.mark.parametrize("name", notebooks.chapters())
    def test_profiles_fit_parameters_and_claims(self, name):
        without = {"gpu"} if name in WITHOUT_GPU else set()
        assert list(notebooks.profiles(name)) == [p for p in notebooks.PROFILES if p not in without]
        for profile in notebooks.profiles(name):
            units = notebooks.units_of(name, notebooks.resolve(name, profile, {}))
            assert len(units) >= 10 if notebooks.paper(name) else units == []

    def test_files_are_of_a_notebook(self):
        """A misspelt name would hide the claims of a chapter."""
        files = [*notebooks.NOTEBOOKS.glob("*/*.yml"), *notebooks.NOTEBOOKS.glob("profiles/*")]
        assert {file.stem for file in files} == {*notebooks.chapters(), "history"}
        for chapter in {file.stem for file in files if file.parent.name == "published"}:
            assert load_claims(chapter)


class TestPage:
    def test_full_disk_is_reported(self, chapter, monkeypatch):
        def full(*arguments):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(notebooks, "_execute", full)
        expected = r"No space left on device(.|\n)*Partial notebook: .*sample"
        with pytest.raises(RunFailed, match=expected):
            run(**notebooks.resolve("sample", "smoke", {}))

    def test_is_complete_and_reproducible(self, chapter):
        page = run(n_images=7)
        first, cells = page.read_bytes(), nbformat.read(page, as_version=4).cells
        assert cells[-1].outputs[0].text == "laptop 7\n"
        assert all(cell.execution_count for cell in cells)
        injected = next(c for c in cells if "injected-parameters" in c.metadata.tags)
        assert "remove-cell" in injected.metadata.tags
        assert run(n_images=7).read_bytes() == first

    def test_has_no_progress(self, chapter, capfd):
        bar = "for _ in tqdm(range(3), leave=False):\n    time.sleep(0.2)"
        message = "print('look', file=sys.stderr)"
        # Papermill interrupts a kernel at its end, which a busy kernel logs.
        ended = "get_ipython().kernel.log.error('KeyboardInterrupt caught in kernel.')"
        imports = f"import sys, time\nfrom tqdm import tqdm\n{bar}"
        write_chapter(chapter, ended, imports, f"{message}\n{bar}")
        page = notebooks.run("sample", {})
        out, err = capfd.readouterr()
        assert "3/3" in err
        assert "KeyboardInterrupt" not in out + err
        cells = nbformat.read(page, as_version=4).cells
        assert [[output.text for output in cell.outputs] for cell in cells[-2:]] == [[], ["look\n"]]

    def test_is_removed_if_a_cell_fails(self, chapter):
        page = chapter.parent / "executed" / "sample.ipynb"
        page.parent.mkdir()
        page.write_text("of an earlier run")
        write_chapter(chapter, "print('so far so good')", "boom = 1 / 0")
        with pytest.raises(RunFailed, match="ZeroDivisionError") as failure:
            run()
        assert not page.exists()
        partial = page.parent / "partial" / page.name
        assert str(partial) in str(failure.value)
        assert "boom = 1 / 0" in str(failure.value)
        cells = nbformat.read(partial, as_version=4).cells
        first = next(cell for cell in cells if cell.source.startswith("print('so far"))
        assert first.outputs[0].text == "so far so good\n"

    def test_usage_error_is_kept(self, chapter):
        write_chapter(chapter, "from suite.errors import UsageError\nraise UsageError('alpha: no')")
        with pytest.raises(UsageError, match="sample: alpha: no"):
            run()

    @pytest.mark.parametrize("end", ["import os\nos._exit(3)", "import sys\nsys.exit(0)"])
    def test_end_of_kernel_is_a_failure(self, chapter, end):
        write_chapter(chapter, end, "print('never')")
        with pytest.raises(RunFailed, match="Partial notebook"):
            run()
        assert not (chapter.parent / "executed" / "sample.ipynb").exists()


@pytest.mark.parametrize("fails", [False, True])
def test_concurrent_runs_have_own_files(monkeypatch, tmp_path, fails):
    monkeypatch.setenv("REGLIB_EXECUTED", str(tmp_path))
    files = []

    def execute(notebook, partial, values, log):
        cell = nbformat.v4.new_code_cell(f"{len(files)}", execution_count=1)
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), partial)
        files.append(partial)
        if len(files) == 1:
            with contextlib.suppress(RunFailed):
                notebooks.run("pilcro", values)
        elif fails:
            raise RunFailed("interrupted")

    monkeypatch.setattr(notebooks, "_execute", execute)
    page = notebooks.run("pilcro", notebooks.resolve("pilcro", "smoke", {}))
    assert (len({*files}), nbformat.read(page, as_version=4).cells[-1].source) == (2, "0")
    assert len([*(tmp_path / "partial").iterdir()]) == fails  # the partial notebook of a failure
