"""Read values measured by others: published accuracies and speeds, matched to models, imported from files."""
