"""What is read once, before kernels are forked, see `suite.notebooks.kernels`."""

import contextlib

from suite.errors import UsageError
from suite.store.kept import Kept

with contextlib.suppress(UsageError):  # that two of them disagree is said by who asks for them
    ARCHIVES = Kept().archives
