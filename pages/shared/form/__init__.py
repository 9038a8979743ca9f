"""Forms built from the fields of a spec, their presets and groups."""
