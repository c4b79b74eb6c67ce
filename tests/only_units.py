"""`python -m suite compute`, where packages that only pages or single units need are absent.

`tests/test_batch.py` runs this file by itself, with the words of the command.
"""

import runpy
import sys
from importlib.machinery import PathFinder

ABSENT = """
IPython captum click distributed foolbox ipykernel jinja2 jupyter_client matplotlib nbclient
nbformat papermill pyautoattack pydantic quantus scipy seaborn sklearn timm
""".split()


class Finder(PathFinder):
    """What finds packages, but those of `ABSENT`."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        absent = name.partition(".")[0] in ABSENT
        return None if absent else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
runpy.run_module("suite", run_name="__main__")
