// What GPUs did: their memory, how busy they were, bytes on their way there, and their work under their own roofs.

const LANES = {gather: 'host: gather', read: 'storage', copy: 'bus', compute: 'device'};

/** The share of a lane's own peak that its bytes each second are of. */
function shareOfPeak(work, device) {
  const peak = {copy: device.bus_bytes_per_second, compute: device.memory_bytes_per_second}[work.lane];
  return peak > 0 && work.seconds > 0 && work.bytes > 0 ? work.bytes / work.seconds / peak : undefined;
}

function deviceFacts(device, work, total) {
  const sum = (lane, key) => d3.sum(work.filter((w) => w.lane === lane), (w) => w[key]);
  const facts = [];
  for (const d of list(device.devices)) {
    const name = list(device.devices).length > 1 ? `Memory of cuda:${d.number}` : 'Memory used';
    if (isNumber(d.memory_peak_bytes)) facts.push(fact(name, bytes(d.memory_peak_bytes), d.memory_budget_bytes > 0 && `of a budget of ${bytes(d.memory_budget_bytes)}`));
  }
  const kernels = sum('compute', 'seconds');
  const number = Math.max(list(device.devices).length, 1);
  if (kernels > 0) facts.push(fact('Time of their work', seconds(kernels), total > 0 && `${percent(kernels / total / number)} of the run${number > 1 ? ', on each' : ''}`));
  for (const [lane, name] of [['copy', 'Over the bus'], ['read', 'From storage']]) {
    const moved = sum(lane, 'bytes');
    const time = sum(lane, 'seconds');
    if (moved > 0) facts.push(fact(name, bytes(moved), time > 0 && `at ${bytesPerSecond(moved / time)}`));
  }
  return facts;
}

function workTable(work, device) {
  const rate = (amount, w) => (amount > 0 && w.seconds > 0 ? amount / w.seconds : undefined);
  const longest = d3.max(work, (w) => w.seconds) || 1;
  const several = new Set(work.map((w) => w.device)).size > 1;
  const columns = [
    {name: 'Work', value: (w) => w.name},
    {name: 'Device', value: (w) => (several ? w.device : undefined), show: (w) => `cuda:${w.device}`},
    {name: 'Lane', value: (w) => LANES[w.lane] || w.lane},
    {name: 'Times', value: (w) => w.count, show: (w) => count(w.count), numeric: true},
    {name: 'Time', value: (w) => w.seconds, show: (w) => seconds(w.seconds), numeric: true, bar: (w) => w.seconds / longest},
    {name: 'Bytes', value: (w) => w.bytes, show: (w) => bytes(w.bytes), numeric: true},
    {name: 'Bytes per second', value: (w) => rate(w.bytes, w), show: (w) => bytesPerSecond(rate(w.bytes, w)), numeric: true},
    {name: 'Of a copy’s', value: (w) => shareOfPeak(w, device), show: (w) => percent(shareOfPeak(w, device)), numeric: true},
    {name: 'Arithmetic', value: (w) => rate(w.flops, w), show: (w) => flopsPerSecond(rate(w.flops, w)), numeric: true},
  ];
  return new DataTable({caption: 'Work by kind', columns, rows: work, sort: 'Time', descending: true}).node;
}

const DEVICE_MEMORY = [['device_memory', 'used by detent', 'resident'], ['gpu', 'in use, by the driver', 'gpu']];
const DEVICE_RATES = [['device_copied', 'over the bus', 'read'], ['device_storage', 'from storage', 'written']];

function deviceChart(timeline, stages, devices, alt) {
  const memory = DEVICE_MEMORY.filter(([key]) => timeline.some((p) => p[key] > 0));
  const busy = timeline.some((p) => p.gpu_busy > 0);
  const moved = DEVICE_RATES.map(([key, text, name]) => ({text, name, points: rates(timeline, key)})).filter((s) => s.points.some((p) => p.rate > 0));
  const panels = [memory.length && 'memory', busy && 'busy', moved.length && 'moved'].filter(Boolean);
  const lanes = lanesOf(stages);
  const laneCount = d3.max(lanes, (s) => s.lane + 1) || 0;
  const end = Math.max(d3.max(timeline, (p) => p.t), d3.max(lanes, (s) => s.start + s.seconds) || 0);
  const budget = d3.sum(devices, (d) => d.memory_budget_bytes);
  const draw = (svg, width, height) => {
    const x = d3.scaleLinear().domain([Math.min(0, timeline[0].t), end]).range([70, width - 12]);
    const top = laneCount * LANE + 4;
    const slot = (height - top - 26) / panels.length;
    drawLanes(svg, lanes, x, 2, height - 26);
    const at = Object.fromEntries(panels.map((name, i) => [name, {x, top: top + i * slot + 24, height: slot - 36}]));
    let level = () => height - 26;
    if (at.memory) {
      const most = d3.max(memory, ([key]) => d3.max(timeline, (p) => p[key])) || 1;
      const near = budget > 0 && budget < 3 * most;
      const max = 1.12 * Math.max(most, near ? budget : 0);
      const curves = memory.map(([key, , name]) => ({points: timeline, key, name, filled: key === 'device_memory'}));
      const y = panel(svg, {...at.memory, max, ticks: byteTicks(max, 3), format: bytes, title: 'Memory of the device', curves});
      if (near) limitLine(svg, x, y(budget), `budget ${bytes(budget)}`, 'roof dashed');
      level = (p) => y(p[memory[0][0]]);
    }
    if (at.busy) {
      panel(svg, {...at.busy, max: 100, ticks: [0, 50, 100], format: (v) => percent(v / 100), title: 'Utilization (from the driver)',
        curves: [{points: timeline, key: 'gpu_busy', name: 'anonymous'}]});
    }
    if (at.moved) {
      const max = 1.12 * (d3.max(moved, (s) => d3.max(s.points, (p) => p.rate)) || 1);
      panel(svg, {...at.moved, max, ticks: byteTicks(max, 3), format: bytesPerSecond, title: 'Bytes to and from the device',
        curves: moved.map((s) => ({points: s.points, key: 'rate', name: s.name}))});
    }
    timeAxis(svg, x, height - 24, top);
    const stride = Math.max(Math.ceil(timeline.length / 1000), 1);
    return timeline.filter((_, i) => i % stride === 0).map((p) => ({x: x(p.t), y: level(p), curve: true, text: deviceMoment(p, memory, busy, moved)}));
  };
  const keys = [...memory.map(([, text, name]) => [lineMark(name), text]), ...moved.map((s) => [lineMark(s.name), s.text])];
  return chart({title: 'Devices over time', alt, keys, draw, heightOf: () => laneCount * LANE + 30 + 130 * panels.length});
}

function deviceMoment(point, memory, busy, moved) {
  const parts = [seconds(point.t), ...memory.filter(([key]) => isNumber(point[key])).map(([key, text]) => `${text} ${bytes(point[key])}`)];
  if (busy && isNumber(point.gpu_busy)) parts.push(`utilization ${percent(point.gpu_busy / 100)}`);
  for (const {text, points} of moved) {
    const slice = d3.least(points, (p) => Math.abs(p.t - point.t));
    if (slice) parts.push(`${text} ${bytesPerSecond(slice.rate)}`);
  }
  return parts.join(' · ');
}

const CURES = {
  gather: 'the host, which collects samples; --set finetune-prefetch reads ahead in more threads',
  read: 'storage; a faster disk, --set gds=on, or a larger --memory-budget helps',
  copy: 'the bus; pinned memory, which is the default, is the fastest way over it',
  compute: 'the device’s own work; --set device-precision=tf32 or bfloat16 makes products faster',
};

/** How much of the time in which devices were in use each lane was busy, and what that means. Lanes go on side by side. */
function laneShares(work, moments, number, total) {
  const used = moments.filter((p) => p.device_memory > 0).map((p) => p.t);
  const span = used.length > 1 ? used[used.length - 1] - used[0] : total;
  if (!(span > 0)) return [];
  const busy = (lane) => d3.sum(work.filter((w) => w.lane === lane), (w) => w.seconds) / number;
  const rows = Object.keys(LANES).map((lane) => ({lane, seconds: busy(lane)})).filter((row) => row.seconds > 0);
  if (!rows.length) return [];
  const most = rows.reduce((a, b) => (b.seconds > a.seconds ? b : a));
  const compute = busy('compute');
  const verdict = most.seconds > span / 2 ? `Bound by ${CURES[most.lane]}.`
    : 'No lane was busy for half of the time: devices waited for the rest of the run, such as the model in ONNX Runtime.';
  rows.push({lane: 'waiting', seconds: Math.max(span - compute, 0)});
  const columns = [
    {name: 'Lane', value: (row) => LANES[row.lane] || 'device: waiting'},
    {name: 'Time', value: (row) => row.seconds, show: (row) => seconds(row.seconds), numeric: true},
    {name: 'Share', value: (row) => row.seconds / span, show: (row) => percent(row.seconds / span), numeric: true},
  ];
  const caption = `Where ${seconds(span)} went${number > 1 ? ', on each device' : ''}`;
  return [el('p', {class: 'hint'}, verdict), new DataTable({caption, columns, rows, sort: 'Time', descending: true}).node];
}

/** Work with counted arithmetic, under the device's own roofs. */
function deviceRoofline(work, device) {
  const dots = rooflineDots(work.filter((w) => w.lane === 'compute').map((w) => ({...w, memory_bytes: w.bytes})), []);
  if (!dots.length) return null;
  const alt = `Roofline plot of ${dots.length} kinds of work on the device, with its measured peaks, logarithmic on both axes.`;
  return rooflineChart(dots, device, alt, 'The device’s work against its measured peaks');
}

function peaksText(device) {
  const facts = [[device.flops_per_second, flopsPerSecond], [device.memory_bytes_per_second, (x) => `memory ${bytesPerSecond(x)}`],
    [device.bus_bytes_per_second, (x) => `bus ${bytesPerSecond(x)}`]];
  return facts.filter(([x]) => x > 0).map(([x, show]) => show(x)).join(' · ');
}

function deviceSection({device, timeline, stages, summary}) {
  const work = list(device.work).filter((w) => isNumber(w.seconds));
  const devices = list(device.devices);
  const moments = timeline.filter((p) => isNumber(p.t)).sort((a, b) => a.t - b.t);
  const told = moments.filter((p) => p.device_memory > 0 || p.gpu > 0 || p.gpu_busy > 0);
  if (!work.length && !devices.length) return null;
  const names = devices.map((d) => `cuda:${d.number}${d.name ? ` (${d.name})` : ''}`).join(', ');
  const peaks = peaksText(device);
  const facts = deviceFacts(device, work, record(summary).seconds);
  const alt = `Curves of memory, use and traffic of ${names || 'the devices'} from 0 to ${seconds(d3.max(moments, (p) => p.t))}.`;
  return section('Devices', names ? el('p', {class: 'origin'}, [names, peaks && `as measured: ${peaks}`].filter(Boolean).join(' · ')) : null,
    facts.length ? el('dl', {class: 'facts'}, ...facts) : null,
    ...laneShares(work, moments, Math.max(devices.length, 1), record(summary).seconds),
    ...devices.filter((d) => d.storage).map((d) => el('p', {class: 'hint'}, `cuda:${d.number} read spooled samples by ${d.storage}`)),
    told.length > 1 && moments[moments.length - 1].t > moments[0].t ? deviceChart(moments, stages, devices, alt) : null,
    work.length ? workTable(work, device) : null, deviceRoofline(work, device));
}
