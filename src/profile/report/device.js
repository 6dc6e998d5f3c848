// What GPUs did: their memory, bytes on their way there, and the time of each kind of work.

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

const CURES = {
  gather: 'the host, which collects samples; --set finetune-prefetch reads ahead in more threads',
  read: 'storage; a faster disk, --set gds=on, or a larger --memory-budget helps',
  copy: 'the bus; pinned memory, which is the default, is the fastest way over it',
  compute: 'the device’s own work; --set device-precision=tf32 or bfloat16 makes products faster',
};

/** How much of the time in which devices were in use each lane was busy, and what that means. Lanes go on side by side. */
function laneShares(work, number, span) {
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

function peaksText(device) {
  const facts = [[device.flops_per_second, flopsPerSecond], [device.memory_bytes_per_second, (x) => `memory ${bytesPerSecond(x)}`],
    [device.bus_bytes_per_second, (x) => `bus ${bytesPerSecond(x)}`]];
  return facts.filter(([x]) => x > 0).map(([x, show]) => show(x)).join(' · ');
}

function deviceSection({device, summary}) {
  const work = list(device.work).filter((w) => isNumber(w.seconds));
  const devices = list(device.devices);
  if (!work.length && !devices.length) return null;
  const names = devices.map((d) => `cuda:${d.number}${d.name ? ` (${d.name})` : ''}`).join(', ');
  const peaks = peaksText(device);
  const facts = deviceFacts(device, work, record(summary).seconds);
  return section('Devices', names ? el('p', {class: 'origin'}, [names, peaks && `as measured: ${peaks}`].filter(Boolean).join(' · ')) : null,
    facts.length ? el('dl', {class: 'facts'}, ...facts) : null,
    ...laneShares(work, Math.max(devices.length, 1), device.seconds_in_use),
    ...devices.filter((d) => d.storage).map((d) => el('p', {class: 'hint'}, `cuda:${d.number} read spooled samples by ${d.storage}`)),
    work.length ? workTable(work, device) : null);
}
