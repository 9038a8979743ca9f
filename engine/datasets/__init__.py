"""Images with captions: open, split and inspect data sets. Nothing here imports torch."""

from engine.datasets.base import DataProblem, Unreadable
from engine.datasets.class_names import class_names, note_on_ids, prompts
from engine.datasets.derived import (
    choose_held_out,
    count_shared,
    hold_out,
    note_on_shared,
    readable,
    sample,
    split,
    weights,
    with_classes_split,
)
from engine.datasets.opening import FIELDS, check_columns, columns_of, columns_of_zeroshot, columns_used, open_pairs
from engine.datasets.pairs import Pairs
from engine.datasets.summary import (
    DataSummary,
    captions_repeat,
    count_distinct,
    fingerprint,
    note_on_repeats,
    summarise,
)
from engine.datasets.uploads import unpack
