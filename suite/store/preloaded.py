"""Archives that are read once, before kernels are forked: see `suite.notebooks.kernels`."""

import contextlib

from suite.errors import UsageError
from suite.store.kept import Kept

with contextlib.suppress(UsageError):  # a disagreement is raised again where they are used
    ARCHIVES = Kept().archives
