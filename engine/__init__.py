"""Model Vitals' engine: what vision models cost, counted and timed on the machine in front of you.

Light modules (specs, results, settings, names, store, jobs, report) never import torch; heavy ones (tasks, models,
measure) are loaded in worker processes only. Nothing in here imports streamlit.
"""
