"""Images with captions: open, split and inspect data sets. Nothing here imports torch."""

from engine.datasets.base import DataProblem, Pairs, Unreadable
from engine.datasets.class_names import class_names, note_on_ids, prompts
from engine.datasets.look import Example, Look, count_distinct, look, note_on_repeats
from engine.datasets.mixed import Mixed, weights
from engine.datasets.multilabel import labels_of, with_classes_split
from engine.datasets.opening import class_column_of, columns_of, columns_used, open_pairs
from engine.datasets.split import Subset, own_parts, readable, sample, split
from engine.datasets.uploads import unpack
