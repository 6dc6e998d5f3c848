// Memory and disk over time, with the stages as lanes above and as shades behind the curves.

const LANE = 20;

/** Stages get the first lane that is free when they start: a stage inside another comes below it. */
function lanesOf(stages) {
  const ends = [];
  return stages.filter((s) => isNumber(s.start) && isNumber(s.seconds)).sort((a, b) => a.start - b.start || b.seconds - a.seconds)
    .map((stage) => {
      const slack = 1e-6;
      let lane = ends.findIndex((end) => end <= stage.start + slack);
      if (lane < 0) lane = ends.length;
      ends[lane] = stage.start + stage.seconds;
      return {...stage, lane};
    });
}

/** Not more points than can be told apart: of each pixel's samples the smallest and the largest, so that peaks survive. */
function thinned(points, key, x) {
  if (points.length < 2000) return points;
  const kept = [];
  for (const group of d3.group(points, (p) => Math.round(x(p.t))).values()) {
    const low = d3.least(group, (p) => p[key]);
    const high = d3.greatest(group, (p) => p[key]);
    kept.push(...(low.t <= high.t ? [low, high] : [high, low]));
  }
  return kept;
}

/** Bytes per second in equal slices of time, from counters that only grow. */
function rates(points, key, slices = 150) {
  const known = points.filter((p) => isNumber(p[key]));
  if (known.length < 2) return [];
  const [first, last] = [known[0].t, known[known.length - 1].t];
  const width = (last - first) / slices;
  if (!(width > 0)) return [];
  const at = d3.scaleLinear().domain(known.map((p) => p.t)).range(known.map((p) => p[key])).clamp(true);
  return d3.range(slices).map((i) => ({t: first + (i + 0.5) * width, rate: Math.max(0, (at(first + (i + 1) * width) - at(first + i * width)) / width)}));
}

function drawLanes(svg, lanes, x, top, bottom) {
  let shades = 0;
  for (const stage of lanes) {
    const [left, right] = [x(stage.start), x(stage.start + stage.seconds)];
    const width = Math.max(right - left, 1);
    const y = top + stage.lane * LANE;
    if (stage.lane === 0) {
      // Every other stage, so that each border can be seen.
      svg.append('rect').attr('class', shades++ % 2 ? 'shade none' : 'shade').attr('x', left).attr('y', y).attr('width', width).attr('height', bottom - y);
    }
    svg.append('rect').attr('class', 'lane').attr('x', left).attr('y', y).attr('width', width).attr('height', LANE - 3)
      .append('title').text(`${stage.number} ${stage.name}: ${seconds(stage.seconds)}`);
    // The number stands for the name where only the number fits; the table of stages has both.
    const text = [`${stage.number} ${stage.name}`, `${stage.number}`].find((t) => textWidth(t) + 4 < width);
    if (text) label(svg, left + Math.min(4, (width - textWidth(text)) / 2), y + 13, text, 'start', 'label lane-name');
  }
}

/** One panel of curves; returns its vertical scale. */
function panel(svg, {x, top, height, max, ticks, format, title, curves}) {
  const y = d3.scaleLinear().domain([0, max]).range([top + height, top]);
  const [left, right] = x.range();
  axis(svg, d3.axisLeft(y).tickValues(ticks).tickFormat(format), left, 0, right - left);
  label(svg, left, top - 8, title, 'start', 'label strong');
  for (const {points, key, name, filled} of curves) {
    const known = points.filter((p) => isNumber(p[key]));
    const line = d3.line().x((p) => x(p.t)).y((p) => y(p[key]));
    const area = d3.area().x((p) => x(p.t)).y0(y(0)).y1((p) => y(p[key]));
    const drawn = thinned(known, key, x);
    if (filled) svg.append('path').attr('class', `area ${name}`).attr('d', area(drawn));
    svg.append('path').attr('class', `line ${name}`).attr('d', line(drawn));
  }
  return y;
}

function timeAxis(svg, x, y, top) {
  const unit = timeUnit(x.domain()[1]);
  const scale = d3.scaleLinear().domain(x.domain().map((t) => t / unit.divisor)).range(x.range());
  const ticks = Math.max(Math.floor((x.range()[1] - x.range()[0]) / 80), 2);
  axis(svg, d3.axisBottom(scale).ticks(ticks).tickFormat((t) => withUnit(digits(t, 4), unit.name)), 0, y, y - top);
}

function markPeak(svg, points, x, y) {
  const peak = d3.greatest(points.filter((p) => isNumber(p.resident)), (p) => p.resident);
  if (!peak) return;
  svg.append('circle').attr('class', 'peak').attr('r', 3).attr('cx', x(peak.t)).attr('cy', y(peak.resident));
  const text = `peak ${bytes(peak.resident)}`;
  const fitsRight = x(peak.t) + textWidth(text) + 10 < x.range()[1];
  label(svg, x(peak.t) + (fitsRight ? 7 : -7), y(peak.resident) - 6, text, fitsRight ? 'start' : 'end', 'label strong halo');
}

const MEMORY = [['resident', 'resident'], ['anonymous', 'anonymous (not backed by a file)'], ['gpu', 'GPU']];
const DISK = [['disk_read', 'read', 'read'], ['disk_written', 'written', 'written']];

/** What stands at one moment, in words. */
function momentText(point, stage, memory, speeds) {
  const parts = [`${seconds(point.t)}${stage ? `, ${stage.name}` : ''}`];
  for (const [key] of memory) if (isNumber(point[key])) parts.push(`${key} ${bytes(point[key])}`);
  for (const {text, points} of speeds) {
    const slice = d3.least(points, (p) => Math.abs(p.t - point.t));
    if (slice) parts.push(`${text} ${bytesPerSecond(slice.rate)}`);
  }
  return parts.join(' · ');
}

function timelineChart({timeline, stages, machine, alt}) {
  const lanes = lanesOf(stages);
  const laneCount = d3.max(lanes, (s) => s.lane + 1) || 0;
  const memory = MEMORY.filter(([key]) => timeline.some((p) => p[key] > 0));
  const speeds = DISK.map(([key, text, name]) => ({text, name, points: rates(timeline, key)})).filter((s) => s.points.length > 0);
  const end = Math.max(d3.max(timeline, (p) => p.t), d3.max(lanes, (s) => s.start + s.seconds) || 0);
  const lowest = Math.min(0, d3.min(timeline, (p) => p.t));
  const panels = [];
  if (memory.length) panels.push({name: 'memory', share: 0.62});
  if (speeds.length) panels.push({name: 'disk', share: 0.38});
  const draw = (svg, width, height) => {
    const x = d3.scaleLinear().domain([lowest, end]).range([70, width - 12]);
    const top = laneCount * LANE + 4;
    const room = height - top - 26;
    const total = d3.sum(panels, (p) => p.share);
    drawLanes(svg, lanes, x, 2, height - 26);
    let y = top;
    let memoryScale;
    panels.forEach(({name, share}) => {
      const slot = room * share / total;
      const inner = {x, top: y + 24, height: slot - 30};
      if (name === 'memory') memoryScale = memoryPanel(svg, inner, timeline, memory);
      else diskPanel(svg, inner, speeds, machine);
      y += slot;
    });
    timeAxis(svg, x, height - 24, top);
    const at = (t) => d3.greatest(lanes.filter((s) => s.start <= t && t <= s.start + s.seconds), (s) => s.lane);
    const level = (p) => (memoryScale && isNumber(p.resident) ? memoryScale(p.resident) : height - 26);
    const stride = Math.max(Math.ceil(timeline.length / 1000), 1);
    return timeline.filter((_, i) => i % stride === 0)
      .map((p) => ({x: x(p.t), y: level(p), curve: true, text: momentText(p, at(p.t), memory, speeds)}));
  };
  const keys = [...memory.map(([key, text]) => [lineMark(key), text]), ...speeds.map((s) => [lineMark(s.name), `disk ${s.text}`])];
  return chart({title: 'Memory in use, and bytes to and from the disk per second', alt, keys, draw, heightOf: (width) => laneCount * LANE + (panels.length > 1 ? 400 : 260) - (width < 500 ? 60 : 0)});
}

function memoryPanel(svg, inner, timeline, memory) {
  const max = 1.12 * (d3.max(memory, ([key]) => d3.max(timeline, (p) => p[key])) || 1);
  const curves = memory.map(([key]) => ({points: timeline, key, name: key, filled: key === 'resident'}));
  const y = panel(svg, {...inner, max, ticks: byteTicks(max), format: bytes, title: 'Memory', curves});
  markPeak(svg, timeline, inner.x, y);
  return y;
}

/** A line across a panel, with what it stands for. */
function limitLine(svg, x, y, text, name = 'roof') {
  const [left, right] = x.range();
  svg.append('line').attr('class', name).attr('x1', left).attr('x2', right).attr('y1', y).attr('y2', y);
  label(svg, right - 4, y - 5, text, 'end', 'label halo');
}

function diskPanel(svg, inner, speeds, machine) {
  const busiest = d3.max(speeds, (s) => d3.max(s.points, (p) => p.rate)) || 1;
  const limit = machine.disk_bytes_per_second;
  // The disk's own speed is drawn where the run came near it; further up it would only flatten the curves.
  const near = isNumber(limit) && limit < 3 * busiest;
  const max = 1.12 * (near ? Math.max(limit, busiest) : busiest);
  const curves = speeds.map((s) => ({points: s.points, key: 'rate', name: s.name}));
  const y = panel(svg, {...inner, max, ticks: byteTicks(max, 3), format: bytesPerSecond, title: 'Disk traffic', curves});
  if (!near) return;
  limitLine(svg, inner.x, y(limit), `disk ${bytesPerSecond(limit)}`);
}
