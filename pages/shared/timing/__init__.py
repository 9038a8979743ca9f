"""Show timings, estimated speeds and calibrations."""
