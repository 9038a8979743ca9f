"""Tables of the catalogue: costs, choices within a budget, one model."""
