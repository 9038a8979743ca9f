"""Parts of pages that run in the browser: charts, and text that can be copied."""
