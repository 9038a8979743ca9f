"""Make tables of the catalogue: costs, choices within a budget, one model."""
