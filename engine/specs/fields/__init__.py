"""Fields that several specs share, and the notations of their values."""
