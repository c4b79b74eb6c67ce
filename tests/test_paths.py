import pytest

from suite.errors import UsageError
from suite.paths import NOTEBOOKS, ROOT, check_run_name, read_yaml, resolve_paths


class TestName:
    @pytest.mark.parametrize("name", ["smoke", "workstation+n_images=64", "a.b-c_1", "2x", "_a"])
    def test_accepted(self, name):
        assert check_run_name(name) == name

    @pytest.mark.parametrize(
        "name",
        ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "a b", "ä", "-p", "a\n", "x" * 200],
    )
    def test_refused(self, name):
        with pytest.raises(UsageError, match="the name of a run: expected a letter or digit"):
            check_run_name(name)


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "line", "message"),
        [
            ("a: 1\nb: 2\na: 3\n", 3, "expected each name once, got 'a' again"),
            ("a: 1\nb: {c: 1, c: 2}\n", 2, "expected each name once, got 'c' again"),
            ("a: 1\nb: 1e3\n", 2, "expected a number as 1.0e+3; text in quotes, got 1e3"),
            ("a: 1.0e3\n", 1, "expected a number as 1.0e+3"),
            ("a: [1, 2e-3]\n", 1, "expected a number as 1.0e+3"),
            ("a: no\n", 1, "expected true or false; a word in quotes, got no"),
            ("a: 1\non: 3\n", 2, "expected true or false"),
            ("a: 010\n", 1, "expected a decimal number; text in quotes, got 010"),
            ("a: 0x10\n", 1, "expected a decimal number"),
            ("a: 12:30\n", 1, "expected a decimal number"),
            ("a: 1:30.5\n", 1, "expected a finite decimal number"),
            ("a: .nan\n", 1, "expected a finite decimal number"),
            ("a: -.inf\n", 1, "expected a finite decimal number"),
            ("a: 1\n\tb: 2\n", 2, "found a tab character that violates indentation"),
            ("a: [1\n", 2, "expected ',' or ']'"),
            ("a: 1\n---\nb: 2\n", 2, "but found another document"),
            ("a: !!python/object:os.system x\n", 1, "could not determine a constructor"),
        ],
    )
    def test_refused_by_file_and_line(self, tmp_path, text, line, message):
        file = tmp_path / "mine.yml"
        file.write_text(text)
        with pytest.raises(UsageError) as error:
            read_yaml(file)
        assert f"{file}, line {line}: " in str(error.value)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", ": expected 'name: value' lines, got an empty file"),
            (b"# only a comment\n", ": expected 'name: value' lines, got an empty file"),
            (b"- a\n", ": expected 'name: value' lines, got a list"),
            (b"word\n", ": expected 'name: value' lines, got a str"),
            ("a: 1\nb: gr\u00fcn\n".encode("latin-1"), ", line 2: .*expected UTF-8"),
            ("a: 1\n".encode("utf-16"), ", line 1: .*expected UTF-8"),
            ("a: 1\n".encode("utf-16-le"), ": not a readable YAML file"),
        ],
    )
    def test_refused_as_a_whole(self, tmp_path, content, message):
        (tmp_path / "mine.yml").write_bytes(content)
        with pytest.raises(UsageError, match=f"mine.yml{message}"):
            read_yaml(tmp_path / "mine.yml")

    def test_missing_or_a_folder(self, tmp_path):
        for file in (tmp_path / "nowhere.yml", tmp_path):
            with pytest.raises(UsageError, match=f"{file}: not a readable YAML file"):
                read_yaml(file)

    def test_read_as_written(self, tmp_path):
        file = tmp_path / "mine.yml"
        text = "a: 1.0e+3\r\nb: 'no'\r\nc: \"010\"\r\nd: [true, -2, 0.5, 1_000]\r\n"
        text += "e: &x {f: gr\u00fcn}\r\ng: {<<: *x, f: 2024-05-01}\r\nh: ~\r\n"
        file.write_bytes(text.encode("utf-8-sig"))
        values = read_yaml(file)
        assert (values["a"], values["b"], values["c"]) == (1000.0, "no", "010")
        assert (values["d"], values["e"]) == ([True, -2, 0.5, 1000], {"f": "gr\u00fcn"})
        assert str(values["g"]["f"]) == "2024-05-01"
        assert values["h"] is None

    def test_files_of_the_project(self):
        files = [*NOTEBOOKS.rglob("*.yml"), *(ROOT / "suite").rglob("*.yml")]
        assert len(files) > 40
        for file in files:
            assert read_yaml(file)


class TestResolvedPaths:
    def test_relative_to_working_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        absolute = [{"data": f"imagefolder:{tmp_path}/photos"}]
        assert resolve_paths([{"data": "imagefolder:photos"}]) == absolute

    def test_second_of_two_data_sets(self, monkeypatch, tmp_path):
        monkeypatch.setenv("REGLIB_DATA", str(tmp_path))
        named = {"data": "cifar10 or cifar10-jpeg"}
        assert resolve_paths([named]) == [{"data": "cifar10"}]
        (tmp_path / "cifar10-jpeg").mkdir()
        assert resolve_paths([named]) == [{"data": "cifar10-jpeg"}]
