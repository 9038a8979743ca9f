"""Parts that all pages of timings use: the card of a row, captions, and raw samples."""
