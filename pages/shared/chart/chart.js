// Draws a plotly figure in the theme of the page and reports its selected points.

const bundle = import(new URL("app/static/plotly.min.js", document.baseURI).href);
const HEIGHT = 450; // pixels, for a figure without a height
const WIDE = 600; // pixels, from which a chart is wide
const PLOT = 64; // pixels, the width that plotly keeps for a plot beside long names
const TEXTS = 0.75; // largest share of a plot's width for the texts beside its bars
const SCREEN = { width: 24, height: 24, path: "M3 3h7v2H5v5H3zm11 0h7v7h-2V5h-5zM3 14h2v5h5v2H3zm16 0h2v7h-7v-2h5z" };

// Streamlit calls this after each run of the page's script, and the returned function when the chart is removed.
export default function ({ data, parentElement, setStateValue }) {
  const element = parentElement.querySelector(".chart");
  element.chart ??= new Chart(element);
  element.chart.show(new TextDecoder().decode(data), (labels) => setStateValue("selected", labels));
  return () => element.chart.leave();
}

class Chart {
  constructor(element) {
    this.element = element;
    this.labels = []; // labels of the selected points
    this.queue = bundle;
    // The wheel scrolls the page. With Ctrl or Cmd it zooms, if the figure allows it.
    element.addEventListener("wheel", (event) => event.ctrlKey || event.metaKey || event.stopPropagation(), { capture: true });
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(element);
  }

  // content: the labels of the selected points as JSON, or null if points cannot be selected; a line break; the figure.
  show(content, report) {
    this.report = report;
    const end = content.indexOf("\n");
    const [labels, text] = [JSON.parse(content.slice(0, end)), content.slice(end + 1)];
    if (labels && labels.toSorted().join() !== this.labels.toSorted().join()) [this.labels, this.drawn] = [labels, undefined]; // selected elsewhere
    if (text !== this.text) {
      this.text = text;
      this.element.setAttribute("aria-busy", "true");
      this.figure = JSON.parse(text);
      this.element.setAttribute("aria-label", this.figure.alt);
      this.element.style.height = this.figure.height || `${this.figure.layout.height ?? HEIGHT}px`; // set before drawing, so that content below does not move
    }
    this.draw();
  }

  // Draw one figure at a time, because plotly draws asynchronously.
  draw() {
    this.queue = this.queue
      .then(() => this.drawIfChanged())
      .catch((error) => {
        console.error(error);
        this.element.textContent = `This chart could not be drawn: ${error.message}`;
      })
      .then(() => this.element.setAttribute("aria-busy", "false"));
  }

  async drawIfChanged() {
    const { element, text } = this;
    const [width, height] = size(element);
    const look = theme(element);
    const drawn = JSON.stringify([width, height, look]);
    if (!width || (text === this.drawnText && drawn === this.drawn)) return; // a width of 0 means hidden
    [this.drawnText, this.drawn] = [text, drawn];

    this.plotly = (await bundle).default;
    // A copy, because plotly writes the zoom into it, and would later take that for the zoom of the figure.
    const figure = JSON.parse(inTheme(text, this.figure.palette, look.colorway));
    const layout = { ...figure.layout, ...(width >= WIDE && figure.wide), width, height, template: { layout: look } };
    makeRoom(layout, look.font);
    const config = { displaylogo: false, showSendToCloud: false, modeBarButtonsToAdd: [fullScreen], ...figure.config };
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls the page
    if (figure.selectable)
      Object.assign(layout, { clickmode: "event+select", selectionrevision: this.labels.join(), selections: [] });
    else config.modeBarButtonsToRemove = ["select2d", "lasso2d"];
    const isFirst = !element.layout;
    this.drawing = true; // plotly also reports selections that it clears itself
    try {
      await this.plotly.react(element, this.marked(figure.data), layout, config);
    } finally {
      this.drawing = false;
    }
    if (isFirst && figure.selectable) {
      element.on("plotly_selected", (event) => this.select(event?.points ?? []));
      element.on("plotly_deselect", () => this.select([]));
    }
  }

  // Selections are stored as labels, so they keep their points when other points are added or removed. If none of them
  // has a point, no trace is marked, because plotly would fade all points.
  marked(traces) {
    if (!this.labels.length) return traces; // customdata without labels may be numbers, which are encoded as one text
    const chosen = new Set(this.labels);
    const places = traces.map(({ customdata = [] }) => [...customdata.keys()].filter((place) => chosen.has(customdata[place][0])));
    if (!places.flat().length) return traces;
    return traces.map((trace, at) => (trace.customdata ? { ...trace, selectedpoints: places[at] } : trace));
  }

  select(points) {
    if (this.drawing) return;
    this.labels = points.filter((point) => point.customdata).map((point) => point.customdata[0]);
    this.report(this.labels);
  }

  leave() {
    this.sizes.disconnect();
    this.queue.then(() => this.plotly?.purge(this.element));
    delete this.element.chart;
  }
}

function size(element) {
  if (document.fullscreenElement !== element) return [element.clientWidth, element.clientHeight];
  return [window.innerWidth - 32, window.innerHeight - 32];
}

const ink = document.createElement("canvas").getContext("2d");

// Set the end of the x axis of horizontal bars so that the texts beside them fit into the width of the chart. Shorten
// texts that are too long for it.
function makeRoom({ annotations, shapes = [], margin, width, xaxis, yaxis }, { family, size }) {
  if (!annotations || !xaxis?.range || !yaxis.categoryarray) return;
  ink.font = `${size}px ${family}`;
  const wide = (text) => ink.measureText(text.replace(/<.*?>/g, "")).width;
  const plot = Math.max(PLOT, width - margin.l - margin.r - Math.max(...yaxis.categoryarray.map(wide)));
  const [begin] = xaxis.range;
  for (const annotation of annotations) {
    const room = TEXTS * plot + margin.r / 2 - (annotation.xshift ?? 0); // the other half for what the ticks take
    if (wide(annotation.text) > room) annotation.text = shortened(annotation.text, (text) => wide(text) <= room);
  }
  const ends = annotations.map(({ x, xshift = 0, text }) => begin + (x - begin) / (1 - Math.min(TEXTS, (xshift + wide(text)) / plot)));
  xaxis.range = [begin, Math.max(...ends, ...shapes.map(({ x1 }) => x1))];
}

// Return the longest beginning of a text, with an ellipsis, for which `fits` is true. The text may have <i> at its end.
function shortened(text, fits) {
  const last = /[^>](<\/i>)?$/;
  while (!fits(`${text}…`) && last.test(text)) text = text.replace(last, "$1");
  return `${text}…`;
}

const fullScreen = {
  name: "Full screen",
  icon: SCREEN,
  click: (element) => (document.fullscreenElement ? document.exitFullscreen() : element.requestFullscreen()),
};

// Return a figure as JSON with each colour of its palette replaced by the one at the same place in the theme.
function inTheme(text, palette, colours) {
  const places = new Map(palette.map((colour, place) => [colour, colours[place] ?? colour]));
  return text.replace(new RegExp(palette.join("|"), "g"), (colour) => places.get(colour));
}

// Return the figure's layout in the colours and fonts of the page.
function theme(element) {
  const style = getComputedStyle(element);
  const of = (name) => style.getPropertyValue(`--st-${name}`).trim();
  const [text, faint, line, behind] = ["text-color", "gray-color", "border-color", "background-color"].map(of);
  const axis = {
    gridcolor: line,
    linecolor: line,
    zerolinecolor: line,
    tickcolor: line,
    tickfont: { color: faint },
    title: { font: { color: text, size: 13 }, standoff: 12 },
    automargin: true,
    ticklabeloverflow: "allow", // hiding labels is slow: plotly measures each one again
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: of("font"), color: text, size: 12 },
    colorway: of("chart-categorical-colors").split(","),
    hoverlabel: { bgcolor: behind, bordercolor: line, font: { family: of("font"), color: text, size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: faint, activecolor: of("primary-color") },
    newselection: { line: { color: of("primary-color") } },
    xaxis: axis,
    yaxis: axis,
  };
}
