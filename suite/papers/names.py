"""What chapters measure, and call measures and columns: `names.yml`, in the order of tables."""

from pathlib import Path
from typing import Any

import yaml

NAMES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_bytes())
