"""The measures of the chapters and the names in their tables, read from `names.yml`."""

from pathlib import Path
from typing import Any

import yaml

NAMES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_bytes())
