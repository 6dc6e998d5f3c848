// What came of the run: whether the result can be used, what changed, what stayed in float and why.

const ANSWER = 'Can I ship this?', ANSWER_ID = 'can-i-ship-this-';
const ANSWERS = {yes: ['✓', 'Ready to use'], look: ['!', 'Look first'], no: ['✕', 'Not close enough']};

/** The size of the error beside that of the signal: 20 dB are a tenth. */
const errorOf = (db) => (isNumber(db) ? 10 ** (-db / 20) : undefined);

function change(term, before, after, show, note) {
  if (!isNumber(before) && !isNumber(after)) return null;
  const value = isNumber(before) ? el('span', {}, show(before), el('span', {class: 'arrow'}, ' → '), show(after)) : show(after);
  return fact(term, value, note);
}

function latencyFact(latency) {
  const l = record(latency);
  const [before, after] = [record(l.before), record(l.after)];
  if (!isNumber(after.median_seconds)) return null;
  const waiting = Math.max(before.waiting_share || 0, after.waiting_share || 0);
  if (waiting > 0.1) return fact('Latency as deployed', 'not measured', `the machine was busy: ${percent(waiting)} of a run was waiting`);
  const {ratio, ratio_low: low, ratio_high: high} = after;
  const factor = ratio > 0 ? `${digits(1 / ratio, 2)} times as fast` : '';
  const turns = isNumber(low) && isNumber(high) ? ` (half of the turns: ${digits(1 / high, 2)} to ${digits(1 / low, 2)})` : '';
  const inputs = l.synthetic ? ', synthetic inputs' : '';
  return change('Latency as deployed', before.median_seconds, after.median_seconds, seconds,
    `${factor}${turns}, ${count(l.threads)} thread${l.threads === 1 ? '' : 's'}${inputs}`);
}

function accuracyFacts({accuracy, outputs}) {
  const a = record(accuracy);
  const worst = isNumber(a.sqnr_db) ? a.sqnr_db : d3.min(outputs, (o) => o.sqnr_db);
  const samples = isNumber(a.samples) ? ` ${count(a.samples)} samples.` : '';
  return [
    isNumber(worst) ? fact('Worst output, SQNR', decibels(worst), `the error is ${percent(errorOf(worst))} of the signal.${samples}`) : null,
    isNumber(a.worst_sample_db) && isNumber(worst) && worst - a.worst_sample_db >= 3
      ? fact('Worst sample', decibels(a.worst_sample_db), 'expect such results of some inputs.') : null,
    isNumber(record(a.worst_channels).sqnr_db)
      ? fact('Worst channels', decibels(a.worst_channels.sqnr_db), `${a.worst_channels.name}, beside values of another size.`) : null,
    isNumber(a.score) ? fact('Score', percent(a.score), 'of the float model’s, by the given command') : null,
    isNumber(a.integer_macs) ? fact('Multiplications in integers', percent(a.integer_macs)) : null,
  ];
}

function keptTable(kept) {
  const columns = [
    {name: 'Node', value: (k) => k.node},
    {name: 'Why', value: (k) => k.why},
    {name: 'Of an output’s error', value: (k) => k.error_share, show: (k) => percent(k.error_share), numeric: true},
    {name: 'Of the multiplications', value: (k) => k.macs_share, show: (k) => percent(k.macs_share), numeric: true},
  ];
  return new DataTable({caption: 'What did not become 8-bit integers, and why', columns, rows: kept, limit: 10, searchText: (k) => `${k.node} ${k.why}`}).node;
}

const listedInFloat = (kept) => kept.filter((k) => String(k.why).startsWith('in float')).length;

/** How the nodes of the table and the number above it go together, and their shares of the error. */
function keptHint(kept, inFloat) {
  const listed = listedInFloat(kept);
  const others = inFloat - listed;
  const rest = others > 0 ? `${count(others)} more of the ${count(inFloat)} nodes stayed in float without a measurement: by an option, beside others in float, or since no sample came to them.` : '';
  const shares = kept.some((k) => isNumber(k.error_share)) ? 'Of an output’s error: of the output that the node harms most, so that shares of several outputs may add up to more than 100 %.' : '';
  return rest || shares ? el('p', {class: 'hint'}, [rest, shares].filter(Boolean).join(' ')) : null;
}

const SQNR_HINT = 'SQNR compares the signal with the error: 20 dB mean an error of a tenth of the signal, 40 dB of a hundredth; 6 dB are one bit.';

function outcomeSection(data) {
  const s = record(data.summary);
  const outcome = record(data.outcome);
  const answer = ANSWERS[outcome.answer];
  const facts = [
    ...accuracyFacts(data),
    latencyFact(s.latency),
    change('Size', s.model_bytes_before, s.model_bytes_after, bytes, s.model_bytes_after > 0 ? `${digits(s.model_bytes_before / s.model_bytes_after, 2)} times smaller` : ''),
    isNumber(s.nodes_quantized) ? fact('Nodes in integers', count(s.nodes_quantized), isNumber(s.nodes_in_float) ? `${count(Math.max(s.nodes_in_float, listedInFloat(data.kept)))} that could be were left in float` : '') : null,
  ].filter(Boolean);
  if (!answer && !isNumber(s.nodes_quantized) && !isNumber(s.model_bytes_after)) return null;
  const headline = answer ? el('p', {class: `answer answer-${outcome.answer}`},
    el('span', {class: 'sign', 'aria-hidden': 'true'}, answer[0]), el('span', {}, outcome.headline || answer[1])) : null;
  const reasons = list(outcome.reasons);
  return section(ANSWER, headline,
    reasons.length ? el('ul', {class: 'advice'}, ...reasons.map((reason) => el('li', {}, String(reason)))) : null,
    facts.length ? el('dl', {class: 'facts'}, ...facts) : null,
    data.kept.length ? keptTable(data.kept) : null, data.kept.length ? keptHint(data.kept, s.nodes_in_float) : null);
}

/** What was done for accuracy, value by value. */
function remediesSection({accuracy, tensors}) {
  const {equalized, methods: chosen, tuned} = record(accuracy);
  const inDecibels = (error) => (error > 0 ? -10 * Math.log10(error) : undefined);
  const remedies = [
    ...list(equalized).map((e) => ({...e, what: 'channel ranges equalized'})),
    ...list(chosen).map((m) => ({...m, what: `range by ${m.method}`})),
    ...(tuned ? [{...tuned, what: 'weights by GPTQ', value: 'all weights'}] : []),
  ].map((r) => ({...r, before: inDecibels(r.error_before), after: inDecibels(r.error_after)}));
  const methods = d3.rollups(tensors.filter((t) => t.method), (all) => all.length, (t) => t.method).sort((a, b) => b[1] - a[1]);
  if (!remedies.length && !methods.length) return null;
  const gain = (r) => (isNumber(r.before) && isNumber(r.after) ? r.after - r.before : undefined);
  const columns = [
    {name: 'What', value: (r) => r.what, show: (r) => (r.kept === false ? `${r.what}, not kept` : r.what)},
    {name: 'Value', value: (r) => r.value},
    {name: 'SQNR before', value: (r) => r.before, show: (r) => decibels(r.before), numeric: true},
    {name: 'SQNR after', value: (r) => r.after, show: (r) => decibels(r.after), numeric: true},
    {name: 'Gain', value: gain, show: (r) => decibels(gain(r)), numeric: true},
  ];
  const ranges = methods.map(([method, number]) => `${count(number)} by ${method}`).join(', ');
  return section('How it was made', ranges ? el('p', {class: 'hint'}, `Ranges of activations: ${ranges}.`) : null,
    remedies.length ? new DataTable({caption: 'Done for accuracy', columns, rows: remedies, limit: 10}).node : null);
}
