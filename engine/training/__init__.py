"""Training and evaluating CLIP: schedules, losses, steps, checkpoints, retrieval, zero-shot."""
