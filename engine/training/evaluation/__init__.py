"""Judging a model: features of images and texts, retrieval, classification, search by text."""
