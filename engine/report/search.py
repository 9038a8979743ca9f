"""Tables of what a search has found."""

from collections.abc import Sequence

import pandas as pd

from engine.results.answers import Hit


def hits(found: Sequence[Hit]) -> pd.DataFrame:
    """Return a line per hit, the nearest first: index, source, label, similarity."""
    return pd.DataFrame([hit.model_dump() for hit in found], columns=list(Hit.model_fields))
