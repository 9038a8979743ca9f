"""Draw Plotly figures."""
