// The roofline: work for each byte moved, against work done in a second. Under the slope memory is the limit, under the
// flat roof arithmetic is; how far below its roof a dot stands is what could be gained.

/** Layers and stages as dots: intensity in FLOP for each byte, speed in FLOP/s. Those that lack either have no place here. */
function rooflineDots(layers, stages) {
  const dot = (kind) => (item) => {
    // A stage that waited for the disk is measured by the bytes of the disk, under the disk's roof.
    const through = item.bound === 'disk' && item.disk_bytes > 0 ? 'disk_bytes' : 'memory_bytes';
    return {item, kind, disk: through === 'disk_bytes', intensity: item.flops / item[through], speed: item.flops / item.seconds};
  };
  const placed = ({intensity: x, speed: y}) => isNumber(x) && x > 0 && isNumber(y) && y > 0;
  return [...layers.map(dot('layer')), ...stages.map(dot('stage'))].filter(placed);
}

/** The most FLOP/s that the machine allows at this intensity; undefined when it was not measured. */
function roofAt(dot, machine) {
  const bandwidth = dot.disk ? machine.disk_bytes_per_second : machine.memory_bytes_per_second;
  const roofs = [machine.flops_per_second, bandwidth * dot.intensity].filter(isNumber);
  return roofs.length ? Math.min(...roofs) : undefined;
}

function dotText(dot, machine) {
  const {item} = dot;
  const roof = roofAt(dot, machine);
  const parts = [dot.kind === 'stage' ? `stage ${item.number} ${item.name}` : item.name, item.op_type, seconds(item.seconds),
    intensity(dot.intensity) + (dot.disk ? ' of disk' : ''), flopsPerSecond(dot.speed)];
  if (roof) parts.push(`${percent(dot.speed / roof)} of its roof`);
  if (item.bound) parts.push(`bound: ${item.bound}`);
  return parts.filter(Boolean).join(' · ');
}

/** The domain of a logarithmic axis: whole decades' thirds around the values, at least two decades. */
function logDomain(values) {
  const low = Math.log10(d3.min(values)) - 0.3;
  const high = Math.log10(d3.max(values)) + 0.3;
  const slack = Math.max(0, 2 - (high - low)) / 2;
  return [10 ** (low - slack), 10 ** (high + slack)];
}

/** A slope for a bandwidth: from the left edge until it meets the flat roof or leaves the plot. */
function drawSlope(svg, x, y, bandwidth, flat, text, name) {
  if (!isNumber(bandwidth) || bandwidth <= 0) return;
  const top = Math.min(isNumber(flat) ? flat : Infinity, y.domain()[1]);
  const [from, to] = [Math.max(x.domain()[0], y.domain()[0] / bandwidth), Math.min(x.domain()[1], top / bandwidth)];
  if (!(to > from)) return;
  const [x1, y1, x2, y2] = [x(from), y(from * bandwidth), x(to), y(to * bandwidth)];
  svg.append('line').attr('class', `roof ${name}`).attr('x1', x1).attr('y1', y1).attr('x2', x2).attr('y2', y2);
  const angle = Math.atan2(y2 - y1, x2 - x1) * 180 / Math.PI;
  if (Math.hypot(x2 - x1, y2 - y1) < textWidth(text) + 16) return;
  label(svg, 0, 0, text, 'start', 'label halo').attr('transform', `translate(${x1},${y1}) rotate(${angle}) translate(10,-6)`);
}

function drawRoofs(svg, x, y, machine, withDisk) {
  const flat = machine.flops_per_second;
  drawSlope(svg, x, y, machine.memory_bytes_per_second, flat, `memory ${bytesPerSecond(machine.memory_bytes_per_second)}`, '');
  if (withDisk) drawSlope(svg, x, y, machine.disk_bytes_per_second, flat, `disk ${bytesPerSecond(machine.disk_bytes_per_second)}`, 'dashed');
  if (!isNumber(flat)) return;
  const ridge = isNumber(machine.memory_bytes_per_second) ? flat / machine.memory_bytes_per_second : 0;
  const left = x(Math.max(ridge, x.domain()[0]));
  svg.append('line').attr('class', 'roof').attr('x1', left).attr('x2', x.range()[1]).attr('y1', y(flat)).attr('y2', y(flat));
  label(svg, x.range()[1] - 4, y(flat) - 7, `arithmetic ${flopsPerSecond(flat)}`, 'end', 'label halo');
}

function drawDot(svg, dot, x, y, longest) {
  const {item} = dot;
  const stage = dot.kind === 'stage';
  // Area goes with time, so that the eye lands on what matters; the smallest can still be hit.
  const size = stage ? 190 : 24 + 280 * (item.seconds / longest);
  svg.append('path').attr('class', `dot ${dot.kind} ${boundClass(item.bound)}`)
    .attr('transform', `translate(${x(dot.intensity)},${y(dot.speed)})`).attr('d', d3.symbol().type(boundShape(item.bound)).size(size)());
  if (stage) label(svg, x(dot.intensity) + 11, y(dot.speed) + 4, String(item.number), 'start', 'label strong halo');
}

function rooflineChart(dots, machine, alt, title = 'Speed against operations per byte') {
  const layers = dots.filter((d) => d.kind === 'layer');
  const longest = d3.max(layers, (d) => d.item.seconds) || 1;
  const withDisk = dots.some((d) => d.disk);
  const draw = (svg, width, height) => {
    const flat = machine.flops_per_second;
    const ridge = flat / machine.memory_bytes_per_second;
    const x = d3.scaleLog().domain(logDomain([...dots.map((d) => d.intensity), ...[ridge].filter(isNumber)])).range([84, width - 12]);
    const y = d3.scaleLog().domain(logDomain([...dots.map((d) => d.speed), ...[flat].filter(isNumber)])).range([height - 44, 14]);
    axis(svg, d3.axisLeft(y).tickValues(decades(y.domain(), 6)).tickFormat((v) => operations(v, 'FLOP/s')), 84, 0, width - 96);
    axis(svg, d3.axisBottom(x).tickValues(decades(x.domain(), width < 500 ? 4 : 8)).tickFormat((v) => digits(v, 1)), 0, height - 44, height - 58);
    label(svg, width - 12, height - 6, 'FLOP per byte moved', 'end');
    drawRoofs(svg, x, y, machine, withDisk);
    // Large ones first, so that small ones lie on top; stages above all.
    const ordered = [...dots].sort((a, b) => (a.kind === b.kind ? b.item.seconds - a.item.seconds : a.kind === 'layer' ? -1 : 1));
    for (const dot of ordered) drawDot(svg, dot, x, y, longest);
    return [...dots].sort((a, b) => b.item.seconds - a.item.seconds)
      .map((d) => ({x: x(d.intensity), y: y(d.speed), text: dotText(d, machine)}));
  };
  const present = BOUNDS.filter((bound) => dots.some((d) => d.item.bound === bound));
  return chart({title, alt, draw, keys: present.map((bound) => [boundMark(bound), `bound by ${bound}`]),
    heightOf: (width) => (width < 500 ? 340 : 440)});
}
