"""Curves of trainings: their points, the choices of smoothing, and the titles of the metrics."""

import pandas as pd
import streamlit as st

from engine.report.figures import training
from engine.store import Run
from pages.shared import backend

SMOOTH = {"no": 1, "5": 5, "20": 20, "100": 100}
FOLDED = "Learning rate, throughput, gradients, memory, ranks"
TITLES = {
    "mark": "Best",
    "step": "Step",
    "train_loss": "Training loss",
    "clip_val_loss": "Held-out loss",
    "val_generative_loss": "Held-out loss of captions",
    "zeroshot_top1": "Zero-shot top-1",
    "zeroshot_top5": "Zero-shot top-5",
    "image_to_text_r1": "Image → text R@1",
    "text_to_image_r1": "Text → image R@1",
    "image_to_text_r5": "Image → text R@5",
    "text_to_image_r5": "Text → image R@5",
    "lr": "Learning rate",
    "logit_scale": "Logit scale",
    "samples_per_s": "Pairs/s",
    "data_share": "Waiting for data",
    "seconds": "Since the start (s)",
    "peak_memory_mb": "Peak memory (MB)",
    "image_to_text_mean_rank": "Image → text mean rank",
    "text_to_image_mean_rank": "Text → image mean rank",
    "samples_seen": "Pairs seen",
    "checkpoint": "Checkpoint",
}


def curve_points(run: Run) -> pd.DataFrame:
    """Return the curves of a run, cached by its revision: see training.frame."""
    return points_of(backend.settings().store_url, run.id, run.revision)


@st.cache_data(max_entries=32, show_spinner=False)
def points_of(store: str, run_id: int, revision: int) -> pd.DataFrame:
    """Return the curves of a run. store: URL of the store; it and the revision are keys of the cache."""
    return training.frame({f"run {run_id}": backend.store().metrics(run_id)})
