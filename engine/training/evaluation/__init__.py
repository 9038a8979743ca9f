"""Evaluate a model: features of images and texts, retrieval, classification, text search."""
