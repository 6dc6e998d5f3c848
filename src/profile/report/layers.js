// Time of each layer, and the error that quantization brought to it.

const searchLayer = (layer) => `${layer.name} ${layer.op_type || ''} ${layer.bound || ''}`;

function layerTable(layers) {
  const total = d3.sum(layers, (l) => l.seconds);
  const longest = d3.max(layers, (l) => l.seconds) || 1;
  const ratio = (a, b) => (a > 0 && b > 0 ? a / b : undefined);
  const speed = (l) => ratio(l.flops, l.seconds);
  const share = (l) => ratio(l.seconds, total);
  const columns = [
    {name: 'Layer', value: (l) => l.name},
    {name: 'Operator', value: (l) => l.op_type},
    {name: 'Time', value: (l) => l.seconds, show: (l) => seconds(l.seconds), numeric: true, bar: (l) => l.seconds / longest},
    {name: 'Of all', value: share, show: (l) => percent(share(l)), numeric: true},
    {name: 'Bound by', value: (l) => l.bound, show: (l) => boundLabel(l.bound)},
    {name: 'Of its peak', value: (l) => l.share, show: (l) => percent(l.share), numeric: true},
    {name: 'Speed', value: speed, show: (l) => flopsPerSecond(speed(l)), numeric: true},
    {name: 'Moved', value: (l) => l.memory_bytes, show: (l) => bytes(l.memory_bytes), numeric: true},
    {name: 'MACs', value: (l) => l.macs, show: (l) => operations(l.macs, 'MAC'), numeric: true},
  ];
  return new DataTable({caption: 'Layers by time', columns, rows: layers, sort: 'Time', descending: true, searchText: searchLayer}).node;
}

/** Equal values have no finite SQNR; that is the best there is and sorts behind every error. */
const isExact = (x) => !isNumber(x.sqnr_db) && x.cosine >= 1;
const errorText = (x) => (isExact(x) ? 'exact' : decibels(x.sqnr_db));
const errorRank = (x) => (isExact(x) ? Infinity : isNumber(x.sqnr_db) ? x.sqnr_db : undefined);

function errorColumns(first, rows) {
  const largest = d3.max(rows, (r) => errorOf(r.sqnr_db)) || 1;
  const badness = (r) => (errorOf(r.sqnr_db) || 0) / largest;  // long bar, large error
  const reasonOf = (r) => (r.reason ? `${r.reason}${r.suggestion ? `: ${r.suggestion}` : ''}` : DASH);
  return [
    {name: first, value: (r) => r.name},
    {name: 'Operator', value: (r) => r.op_type},
    {name: 'SQNR', value: errorRank, show: errorText, numeric: true},
    {name: 'Error', value: (r) => errorOf(r.sqnr_db), show: (r) => (isExact(r) ? 'none' : percent(errorOf(r.sqnr_db))), numeric: true, bar: badness},
    {name: 'Cosine', value: (r) => r.cosine, show: (r) => cosineText(r.cosine), numeric: true},
    {name: 'Likely reason', value: (r) => r.reason, show: reasonOf},
  ];
}

function errorTable(caption, first, rows) {
  return new DataTable({caption, columns: errorColumns(first, rows), rows, sort: 'SQNR', searchText: searchLayer}).node;
}

/** SQNR along the model: where it falls, a layer added error; where it stays low, the error was handed down. */
function errorChart(layers, alt) {
  const measured = layers.map((layer, i) => ({layer, i})).filter(({layer}) => isNumber(layer.sqnr_db));
  const draw = (svg, width, height) => {
    const x = d3.scaleLinear().domain([0, Math.max(layers.length - 1, 1)]).range([70, width - 16]);
    const y = d3.scaleLinear().domain([Math.min(0, d3.min(measured, (m) => m.layer.sqnr_db)), d3.max(measured, (m) => m.layer.sqnr_db) * 1.05 || 1]).nice()
      .range([height - 44, 14]);
    axis(svg, d3.axisLeft(y).ticks(5).tickFormat((v) => withUnit(digits(v), 'dB')), 70, 0, width - 86);
    axis(svg, d3.axisBottom(x).ticks(Math.min(width / 90, layers.length)).tickFormat((v) => (Number.isInteger(v) ? String(v + 1) : '')), 0, height - 44, 0);
    label(svg, width - 16, height - 6, 'layer, in the order of the model', 'end');
    svg.append('path').attr('class', 'line thin').attr('d', d3.line().x((m) => x(m.i)).y((m) => y(m.layer.sqnr_db))(measured));
    for (const m of measured) svg.append('circle').attr('class', 'point').attr('r', measured.length > 120 ? 2 : 3).attr('cx', x(m.i)).attr('cy', y(m.layer.sqnr_db));
    const worst = d3.least(measured, (m) => m.layer.sqnr_db);
    const right = x(worst.i) > width / 2;
    svg.append('circle').attr('class', 'peak').attr('r', 4).attr('cx', x(worst.i)).attr('cy', y(worst.layer.sqnr_db));
    label(svg, x(worst.i) + (right ? -8 : 8), y(worst.layer.sqnr_db) + 14, `worst ${decibels(worst.layer.sqnr_db)}`, right ? 'end' : 'start', 'label strong halo');
    return measured.map((m) => ({x: x(m.i), y: y(m.layer.sqnr_db),
      text: `layer ${m.i + 1} · ${m.layer.name} · ${m.layer.op_type || ''} · SQNR ${decibels(m.layer.sqnr_db)} · cosine ${cosineText(m.layer.cosine)}`}));
  };
  return chart({title: 'Signal to quantization noise along the model', alt, draw, heightOf: (width) => (width < 500 ? 220 : 260)});
}
