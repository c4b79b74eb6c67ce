"""What the chapters call measures and columns: `names.yml`, in the order of tables."""

from pathlib import Path
from typing import Any

import yaml

TEXT = Path(__file__).with_suffix(".yml").read_text(encoding="utf-8")
NAMES: dict[str, Any] = yaml.safe_load(TEXT)
