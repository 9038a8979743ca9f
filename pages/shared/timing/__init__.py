"""What pages of timings share: the card of a timing, its view and its samples."""
