"""Write files: CSV, JSON and Parquet, and the formats of other benchmarks."""
