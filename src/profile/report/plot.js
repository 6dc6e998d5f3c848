// What all charts share: a frame that follows the width of the page, axes, marks, and reading values off.
// Colours and strokes are classes of report.css, so dark mode and print need no drawing anew.

const BOUNDS = ['compute', 'memory', 'disk', 'transfer', 'waiting', 'contention'];
// Shape says the same as colour, for whoever cannot tell the colours apart.
const SHAPES = [d3.symbolCircle, d3.symbolSquare, d3.symbolTriangle, d3.symbolDiamond, d3.symbolCross, d3.symbolStar];
const PRINT_WIDTH = 680;

const boundClass = (bound) => (BOUNDS.includes(bound) ? `bound-${bound}` : 'bound-none');
const boundShape = (bound) => SHAPES[Math.max(BOUNDS.indexOf(bound), 0)];

function svgElement(width, height) {
  return d3.create('svg').attr('viewBox', `0 0 ${width} ${height}`).attr('width', width).attr('height', height);
}

function boundMark(bound) {
  const svg = svgElement(12, 12).attr('class', 'mark').attr('aria-hidden', 'true');
  svg.append('path').attr('class', boundClass(bound)).attr('transform', 'translate(6,6)')
    .attr('d', d3.symbol().type(boundShape(bound)).size(60)());
  return svg.node();
}

/** For every chart on the page, how to draw it at a given width. */
const charts = new Map();

function redraw(node, width) {
  const chart = charts.get(node);
  if (!chart || width < 50 || chart.width === width) return;
  chart.width = width;
  chart.draw(width);
}

const resized = new ResizeObserver((entries) => {
  for (const entry of entries) {
    // In the next frame: a drawing must not resize what is being observed.
    const width = Math.floor(entry.contentRect.width);
    requestAnimationFrame(() => redraw(entry.target, width));
  }
});

const ownWidth = (node) => Math.floor(node.clientWidth);

/** Draws what is new or has changed its width, and forgets charts that have left the page. */
function redrawAll(widthOf = ownWidth) {
  for (const node of charts.keys()) {
    if (node.isConnected) redraw(node, widthOf(node));
    else charts.delete(node);
  }
}
window.addEventListener('beforeprint', () => redrawAll(() => PRINT_WIDTH));
window.addEventListener('afterprint', () => redrawAll());

/**
 * A chart. draw(svg, width, height) fills it and returns the points that can be read off: {x, y, text}, in pixels.
 * heightOf(width) gives its height; `alt` says in words what it shows.
 */
function chart({alt, title, heightOf, draw}) {
  const frame = el('div', {class: 'plot'});
  const readout = el('output', {class: 'readout'});
  const cursor = el('input', {type: 'range', class: 'cursor', min: 0, value: 0, step: 1, 'aria-label': `Step through the values: ${title}`});
  const state = {points: []};
  const drawAt = (width) => {
    const height = heightOf(width);
    const svg = svgElement(width, height).attr('role', 'img').attr('aria-label', alt);
    state.points = draw(svg, width, height) || [];
    cursor.max = Math.max(state.points.length - 1, 0);
    cursor.hidden = state.points.length === 0;
    readout.textContent = '';
    frame.replaceChildren(svg.node());
    readOff(svg, state, cursor, readout);
  };
  charts.set(frame, {draw: drawAt, width: 0});
  resized.observe(frame);
  return el('figure', {}, el('figcaption', {}, title), frame, cursor, readout);
}

/** Pointer, finger and arrow keys choose a point; its values appear below the chart. */
function readOff(svg, state, cursor, readout) {
  const ring = svg.append('circle').attr('class', 'ring').attr('r', 9).style('display', 'none');
  const choose = (i) => {
    const point = state.points[i];
    if (!point) return;
    ring.style('display', null).attr('cx', point.x).attr('cy', point.y);
    readout.textContent = point.text;
    cursor.value = i;
    cursor.setAttribute('aria-valuetext', point.text);
  };
  const nearest = (event) => {
    const box = svg.node().getBoundingClientRect();
    const scale = Number(svg.attr('width')) / box.width;
    const x = (event.clientX - box.left) * scale;
    choose(d3.leastIndex(state.points, (p) => Math.abs(p.x - x)));
  };
  for (const name of ['pointermove', 'pointerdown']) svg.node().addEventListener(name, nearest);
  cursor.oninput = () => choose(Number(cursor.value));
  cursor.onfocus = () => choose(Number(cursor.value));
}

/** Axis `make` at (x, y), with grid lines of `grid` pixels and a label. */
function axis(svg, make, x, y, grid) {
  const group = svg.append('g').attr('class', 'axis').attr('transform', `translate(${x},${y})`);
  group.call(make.tickSizeOuter(0).tickSizeInner(-grid).tickPadding(6));
  group.select('.domain').remove();
  return group;
}

function label(svg, x, y, text, anchor = 'start', name = 'label') {
  return svg.append('text').attr('class', name).attr('x', x).attr('y', y).attr('text-anchor', anchor).text(text);
}

/** Powers of ten inside a logarithmic scale's domain, not more than `wanted`. */
function decades(domain, wanted) {
  const [low, high] = domain.map((x) => Math.log10(x));
  const step = Math.max(Math.ceil((high - low) / wanted), 1);
  return d3.range(Math.ceil(low - 1e-9), high + 1e-9, step).map((power) => 10 ** power);
}
