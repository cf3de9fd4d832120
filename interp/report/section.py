"""A part of a page."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class Section:
    """A part of a page: a heading, the finding in one sentence, figures, tables, and where it comes from."""

    title: str
    finding: str
    definition: str
    figures: list[go.Figure]
    tables: dict[str, pd.DataFrame]
    provenance: dict[str, Any]
