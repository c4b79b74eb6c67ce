"""`python -m suite compute` without packages that only pages need, run by `test_batch`."""

import runpy
import sys
from importlib.machinery import PathFinder

ABSENT = """
IPython captum click distributed foolbox ipykernel jinja2 jupyter_client matplotlib nbclient
nbformat papermill pyautoattack pydantic quantus scipy seaborn sklearn timm
""".split()


class Finder(PathFinder):
    """Find packages except those in `ABSENT`."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in ABSENT
        return None if absent else super().find_spec(name, path, target)


if __name__ == "__main__":  # not during the collection of doctests
    sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
    runpy.run_module("suite", run_name="__main__")
