"""Move, back up, restore and rebuild a whole store."""
