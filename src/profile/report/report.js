// Reads the data and puts the sections together. A section whose data are missing is left out.

function headlineFacts(s) {
  const facts = [
    ['Time of the run', s.seconds, seconds],
    ['CPU time', s.cpu_seconds, seconds, s.seconds > 0 && `${digits(s.cpu_seconds / s.seconds, 2)} cores busy`],
    ['Peak memory', s.peak_memory_bytes, bytes],
    ['Read from disk', s.disk_read_bytes, bytes],
    ['Written to disk', s.disk_written_bytes, bytes],
    ['Samples', s.samples, count, s.seconds > 0 && `${digits(s.samples / s.seconds, 2)} per second`],
  ];
  return facts.filter(([, value]) => isNumber(value)).map(([term, value, show, note]) => fact(term, show(value), note));
}

const runShare = (stage, total) => (total > 0 && isNumber(stage.seconds) ? stage.seconds / total : undefined);

/** Advice on stages that took a twentieth of the run or more, the longest first; what the verdict says is not said again. */
function adviceItems({summary, verdict, stages}) {
  const worthwhile = stages.filter((s) => s.advice && !(runShare(s, record(summary).seconds) < 0.05) && !String(verdict).includes(s.advice));
  return worthwhile.sort((a, b) => (b.seconds || 0) - (a.seconds || 0))
    .map((s) => el('li', {}, el('b', {}, s.name), ` (${seconds(s.seconds)}${s.bound ? `, bound by ${s.bound}` : ''}): ${s.advice}`));
}

/** How the run itself went; what came of it is told before. */
function runSection(data) {
  const {summary, verdict} = data;
  const facts = headlineFacts(record(summary));
  const advice = adviceItems(data);
  if (!facts.length && !verdict && !advice.length) return null;
  return section('How the run went', verdict ? el('p', {class: 'verdict'}, String(verdict)) : null,
    facts.length ? el('dl', {class: 'facts'}, ...facts) : null,
    advice.length ? el('div', {}, el('h3', {}, 'What to change'), el('ul', {class: 'advice'}, ...advice)) : null);
}

function stageTable(stages, total) {
  const rate = (amount, s) => (amount > 0 && s.seconds > 0 ? amount / s.seconds : undefined);
  const longest = d3.max(stages, (s) => s.seconds) || 1;
  const columns = [
    {name: 'Stage', value: (s) => s.number, show: (s) => `${s.number} ${s.name}`},
    {name: 'Time', value: (s) => s.seconds, show: (s) => seconds(s.seconds), numeric: true, bar: (s) => s.seconds / longest},
    {name: 'Of all', value: (s) => runShare(s, total), show: (s) => percent(runShare(s, total)), numeric: true},
    {name: 'Bound by', value: (s) => s.bound, show: (s) => boundLabel(s.bound)},
    {name: 'Of its peak', value: (s) => s.share, show: (s) => percent(s.share), numeric: true},
    {name: 'Peak memory', value: (s) => s.peak_memory_bytes, show: (s) => bytes(s.peak_memory_bytes), numeric: true},
    {name: 'Arithmetic', value: (s) => rate(s.flops, s), show: (s) => flopsPerSecond(rate(s.flops, s)), numeric: true},
    {name: 'Memory traffic', value: (s) => rate(s.memory_bytes, s), show: (s) => bytesPerSecond(rate(s.memory_bytes, s)), numeric: true},
    {name: 'Disk traffic', value: (s) => rate(s.disk_bytes, s), show: (s) => bytesPerSecond(rate(s.disk_bytes, s)), numeric: true},
  ];
  return new DataTable({caption: 'Stages', columns, rows: stages, sort: 'Stage', searchText: (s) => s.name}).node;
}

function timeSection({summary, stages}) {
  return stages.length ? section('Stages of the run', el('p', {class: 'hint'}, 'To see memory, disk and devices over time, give --set trace=OUT.json and open the file in Perfetto (ui.perfetto.dev).'),
    stageTable(stages, record(summary).seconds)) : null;
}

function layerSection({layers}) {
  const timed = layers.filter((l) => l.seconds > 0);
  return timed.length ? section('Time of each layer', el('p', {class: 'hint'}, 'One run of the float model during calibration, in the mean over the samples, with observers inside. What the result takes is the latency at the top.'), layerTable(timed)) : null;
}

function errorSection({layers, outputs, compared_samples: samples}) {
  const judged = layers.filter((l) => isNumber(l.sqnr_db) || isNumber(l.cosine));
  const ends = outputs.filter((o) => isNumber(o.sqnr_db) || isNumber(o.cosine));
  if (!judged.length && !ends.length) return null;
  const finite = judged.filter((l) => isNumber(l.sqnr_db));
  const worst = d3.least(finite, (l) => l.sqnr_db);
  const alt = worst && `Signal to quantization noise of ${finite.length} layers in the order of the model. The worst is ${worst.name} with ${decibels(worst.sqnr_db)}.`;
  return section('Layers, worst first', el('p', {class: 'hint'}, `${isNumber(samples) ? `Measured on ${count(samples)} sample${samples === 1 ? '' : 's'}. ` : ''}${SQNR_HINT} Names are those of the float model's nodes, as Netron shows them: search there with Ctrl+F.`),
    ends.length ? errorTable('Outputs of the model', 'Output', ends) : null,
    judged.length ? errorTable('Layers', 'Layer', judged) : null, finite.length > 1 ? errorChart(judged, alt) : null);
}

function tuningSection({tuned}) {
  if (!tuned.length) return null;
  const ratio = (l) => (l.error_before > 0 ? l.error_after / l.error_before : undefined);
  const exponent = (x) => (isNumber(x) ? x.toExponential(2) : '');
  const columns = [
    {name: 'Layer', value: (l) => l.name},
    {name: 'Operator', value: (l) => l.op_type},
    {name: 'Form', value: (l) => (l.streamed ? 'mini-batches' : 'Gram')},
    {name: 'Nearest', value: (l) => l.error_before, show: (l) => exponent(l.error_before), numeric: true},
    {name: 'Tuned', value: (l) => l.error_after, show: (l) => (l.tuned ? exponent(l.error_after) : 'no better'), numeric: true},
    {name: 'Of nearest', value: ratio, show: (l) => percent(ratio(l)), numeric: true, bar: (l) => ratio(l) || 0},
    {name: 'Time', value: (l) => l.seconds, show: (l) => seconds(l.seconds), numeric: true},
  ];
  const kept = tuned.filter((l) => l.tuned).length;
  return section('Fine-tuning', el('p', {class: 'hint'}, `Mean squared error of each layer's output on held-back samples. ${kept} of ${tuned.length} layers keep the tuned weights, the others nearest rounding.`),
    new DataTable({caption: 'Layers in the order of the model', columns, rows: tuned}).node);
}

function tensorSection({tensors}) {
  return tensors.length ? section('Activations and their ranges', el('p', {class: 'hint no-print'}, 'Open a tensor to see its histogram.'), tensorTable(tensors)) : null;
}

function planSection({plan}) {
  if (!plan.length) return null;
  const ratio = (p) => (p.predicted > 0 && isNumber(p.measured) ? p.measured / p.predicted : undefined);
  const columns = [
    {name: 'What', value: (p) => p.what},
    {name: 'Predicted', value: (p) => p.predicted, show: (p) => byUnit(p.predicted, p.unit), numeric: true},
    {name: 'Measured', value: (p) => p.measured, show: (p) => byUnit(p.measured, p.unit), numeric: true},
    {name: 'Measured of predicted', value: ratio, show: (p) => percent(ratio(p)), numeric: true, bar: (p) => (ratio(p) || 0) / 2},
  ];
  return section('Plan and measurement', new DataTable({caption: 'Predicted and measured', columns, rows: plan}).node);
}

function notesSection({notes}) {
  return notes.length ? section('Notes', el('ul', {class: 'notes'}, ...notes.map((note) => el('li', {}, String(note))))) : null;
}

function header({title, version, date}) {
  return el('header', {}, el('h1', {}, title || 'detent report'),
    version ? el('p', {class: 'origin'}, `detent ${version}${date ? `, ${date}` : ''}`) : null);
}

/** What the run was given, and where it ran: behind the answer, which is what a reader comes for. */
function origin({model_fingerprint, command, machine}) {
  const words = list(command).map(String);
  const quoted = words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(' ');
  const facts = [[machine.threads, (x) => `${count(x)} ${x === 1 ? 'thread' : 'threads'}`], [machine.flops_per_second, flopsPerSecond],
    [machine.memory_bytes_per_second, (x) => `memory ${bytesPerSecond(x)}`], [machine.disk_bytes_per_second, (x) => `disk ${bytesPerSecond(x)}`]];
  const measured = facts.filter(([x]) => isNumber(x)).map(([x, show]) => show(x)).join(' · ');
  const lines = [quoted ? el('pre', {class: 'command', tabindex: '0', 'aria-label': 'Command'}, quoted) : null,
    model_fingerprint ? el('p', {class: 'origin'}, `Fingerprint of the float model: ${model_fingerprint}`) : null,
    measured ? el('p', {class: 'origin'}, `This machine, as measured: ${measured}`) : null].filter(Boolean);
  return lines.length ? el('div', {class: 'given'}, ...lines) : null;
}

function contents(sections) {
  const link = (s) => el('li', {}, el('a', {href: `#${s.id}`}, s.querySelector('h2').textContent));
  return sections.length > 2 ? el('nav', {'aria-label': 'Sections'}, el('ul', {}, ...sections.map(link))) : null;
}

/** One broken section must not take the others with it, nor go unnoticed. */
function attempt(make, data) {
  try {
    return make(data);
  } catch (error) {
    console.error(error);
    return section('Section not shown', el('p', {}, `A part of this report could not be shown: ${error.message}`));
  }
}

function report(raw) {
  const data = {...raw, machine: record(raw.machine), device: record(raw.device)};
  for (const key of ['stages', 'layers', 'tensors', 'plan', 'notes', 'outputs', 'tuned', 'kept']) data[key] = list(raw[key]);
  data.stages = data.stages.map((stage, i) => ({...stage, number: i + 1}));
  if (data.title) document.title = data.title;
  const makers = [outcomeSection, errorSection, remediesSection, tuningSection, tensorSection, notesSection, runSection, timeSection, deviceSection, layerSection, planSection];
  const sections = makers.map((make) => attempt(make, data)).filter(Boolean);
  const empty = sections.length ? null : el('p', {}, 'This report contains no figures.');
  const answer = sections.filter((s) => s.id === ANSWER_ID);
  const others = sections.filter((s) => s.id !== ANSWER_ID);
  document.getElementById('report').replaceChildren(...[header(data), ...answer, contents(sections), origin(data), ...others, empty].filter(Boolean));
  redrawAll();
}

function start() {
  const text = document.getElementById('data').textContent;
  try {
    report(record(JSON.parse(text)));
  } catch (error) {
    console.error(error);
    document.getElementById('report').replaceChildren(el('h1', {}, 'detent report'), el('p', {}, `The figures of this report cannot be read: ${error.message}`));
  }
}
start();
