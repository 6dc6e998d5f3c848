// The activations: which range was chosen, and what of the values lies inside. Histograms are drawn when a row is opened.

const interval = (range) => (Array.isArray(range) ? `[${digits(range[0], 4)}, ${digits(range[1], 4)}]` : DASH);

/** Bars as {from, to, count, height}. Unequal bins are drawn by density, or wide ones would look heavier than they are. */
function histogramBars({edges, counts}) {
  const widths = counts.map((_, i) => edges[i + 1] - edges[i]);
  const equal = d3.max(widths) < 1.01 * d3.min(widths);
  const mean = (edges[counts.length] - edges[0]) / counts.length;
  const bars = counts.map((n, i) => ({from: edges[i], to: edges[i + 1], count: n, height: equal ? n : n * mean / (widths[i] || mean)}));
  return {equal, bars: bars.filter((bar) => bar.count > 0)};
}

/** Where a bar lies with respect to the chosen range: what sticks out on either side is clipped. */
function barPieces(bar, range) {
  if (!Array.isArray(range)) return [{...bar, clipped: false}];
  const cuts = [bar.from, ...range.filter((r) => r > bar.from && r < bar.to), bar.to];
  return d3.pairs(cuts).map(([from, to]) => {
    const middle = (from + to) / 2;
    return {...bar, from, to, clipped: middle < range[0] || middle > range[1]};
  });
}

function drawRange(svg, x, range, top, bottom) {
  const [left, right] = range.map(x);
  svg.append('rect').attr('class', 'range').attr('x', left).attr('y', top).attr('width', Math.max(right - left, 1)).attr('height', bottom - top);
  for (const end of [left, right]) {
    svg.append('line').attr('class', 'range-end').attr('x1', end).attr('x2', end).attr('y1', top - 6).attr('y2', bottom);
  }
  label(svg, (left + right) / 2, top - 9, 'chosen range', 'middle', 'label strong');
}

function histogramChart(tensor) {
  const {bars, equal} = histogramBars(tensor.histogram);
  const extent = [...tensor.histogram.edges, ...(tensor.range || []), ...(tensor.observed || [])].filter(isNumber);
  const [low, high] = d3.extent(extent);
  const pad = (high - low) * 0.02 || 1;
  const total = d3.sum(bars, (bar) => bar.count);
  const alt = `Histogram of ${count(total)} values of ${tensor.name}, from ${digits(low, 4)} to ${digits(high, 4)}.` +
    (Array.isArray(tensor.range) ? ` Chosen range ${interval(tensor.range)}; ${percent(tensor.clipped_share)} of the values are outside.` : '');
  const draw = (svg, width, height) => {
    const x = d3.scaleLinear().domain([low - pad, high + pad]).range([70, width - 16]);
    const smallest = d3.min(bars, (bar) => bar.height) || 1;
    // A logarithmic height: the few values far out are what a range is about, and would not be seen otherwise.
    const y = d3.scaleLog().domain([smallest / 2, Math.max(d3.max(bars, (bar) => bar.height) || 1, smallest * 10)]).range([height - 44, 30]);
    axis(svg, d3.axisLeft(y).tickValues(decades(y.domain(), 5)).tickFormat((v) => digits(v, 1)), 70, 0, width - 86);
    axis(svg, d3.axisBottom(x).ticks(Math.floor(width / 90)).tickFormat((v) => digits(v, 4)), 0, height - 44, 0);
    if (Array.isArray(tensor.range)) drawRange(svg, x, tensor.range, 30, height - 44);
    for (const piece of bars.flatMap((bar) => barPieces(bar, tensor.range))) {
      svg.append('rect').attr('class', piece.clipped ? 'bin clipped' : 'bin').attr('x', x(piece.from)).attr('y', y(piece.height))
        .attr('width', Math.max(x(piece.to) - x(piece.from) - 0.3, 0.7)).attr('height', Math.max(height - 44 - y(piece.height), 0));
    }
    label(svg, width - 16, height - 6, 'value', 'end');
    label(svg, 0, 12, equal ? 'values in bin' : 'density', 'start');
    return bars.map((bar) => ({x: x((bar.from + bar.to) / 2), y: y(bar.height),
      text: `${digits(bar.from, 4)} to ${digits(bar.to, 4)} · ${count(bar.count)} values · ${percent(bar.count / total)}`}));
  };
  return chart({title: `Values of ${tensor.name}`, alt, draw, heightOf: (width) => (width < 500 ? 220 : 260)});
}

const drawable = ({histogram: h}) => h && Array.isArray(h.edges) && Array.isArray(h.counts) && h.edges.length === h.counts.length + 1 &&
  h.edges[h.counts.length] > h.edges[0] && h.counts.some((n) => n > 0);

/** What opens below a tensor's row. */
function tensorDetail(tensor) {
  const facts = [['Made by', tensor.made_by], ['Method', tensor.method], ['Chosen range', interval(tensor.range)], ['Observed', interval(tensor.observed)],
    ['Scale', digits(tensor.scale, 5)], ['Zero point', count(tensor.zero_point)], ['Outside the range', percent(tensor.clipped_share)]];
  const list = el('dl', {class: 'facts'}, ...facts.filter(([, value]) => value && value !== DASH).map(([term, value]) => fact(term, value)));
  return el('div', {}, drawable(tensor) ? histogramChart(tensor) : el('p', {}, 'There is no histogram of this tensor.'), list);
}

/** How much of what was observed the range keeps, by length. */
const rangeRatio = (t) => (Array.isArray(t.range) && Array.isArray(t.observed) && t.observed[1] > t.observed[0]
  ? (t.range[1] - t.range[0]) / (t.observed[1] - t.observed[0]) : undefined);

function tensorTable(tensors) {
  const most = d3.max(tensors, (t) => t.clipped_share) || 1;
  const columns = [
    {name: 'Tensor', value: (t) => t.name},
    {name: 'Made by', value: (t) => t.made_by},
    // Beside a chosen range there is the share of it; in a report of statistics this is all there is.
    {name: 'Observed', value: (t) => (t.range || !t.observed ? undefined : t.observed[1] - t.observed[0]), show: (t) => interval(t.observed), numeric: true},
    {name: 'Method', value: (t) => t.method},
    {name: 'Outside', value: (t) => t.clipped_share, show: (t) => percent(t.clipped_share), numeric: true, bar: (t) => t.clipped_share / most},
    {name: 'Chosen range', value: (t) => t.range && t.range[1] - t.range[0], show: (t) => interval(t.range), numeric: true},
    {name: 'Of observed', value: rangeRatio, show: (t) => percent(rangeRatio(t)), numeric: true},
    {name: 'Scale', value: (t) => t.scale, show: (t) => digits(t.scale, 4), numeric: true},
    {name: 'Zero point', value: (t) => t.zero_point, show: (t) => count(t.zero_point), numeric: true},
  ];
  return new DataTable({caption: 'Activations', columns, rows: tensors, sort: 'Outside', descending: true, detail: tensorDetail,
    searchText: (t) => `${t.name} ${t.made_by || ''} ${t.method || ''}`}).node;
}
