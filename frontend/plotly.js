// The traces that our figures have; scatter comes with the core. A figure with another one needs it here first.
import Plotly from "plotly.js/lib/core";
import bar from "plotly.js/lib/bar";
import heatmap from "plotly.js/lib/heatmap";
import treemap from "plotly.js/lib/treemap";

Plotly.register([bar, heatmap, treemap]);
export default Plotly;
