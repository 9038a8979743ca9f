"""Compare runs and models side by side: settings, rows, values, ratios."""
