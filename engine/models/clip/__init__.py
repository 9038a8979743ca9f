"""Build open_clip's models, with and without weights."""
