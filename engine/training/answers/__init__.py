"""Answers to questions of pages about a training: its needs, augmented images, its export."""
