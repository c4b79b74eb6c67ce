"""What the chapters call methods, measures and columns: `names.yml`, in the order of tables."""

from pathlib import Path
from typing import Any

from suite.paths import read_yaml

NAMES: dict[str, Any] = read_yaml(Path(__file__).with_suffix(".yml"))
