// Numbers as text, each with its unit. What is missing or not finite becomes a dash.
const DASH = '–';
const NARROW = '\u202f';
const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
const DECIMAL = ['', 'k', 'M', 'G', 'T', 'P'];

const isNumber = (x) => typeof x === 'number' && Number.isFinite(x);
const withUnit = (text, unit) => (unit ? text + NARROW + unit : text);

/** Three significant digits, whole numbers kept whole. */
function digits(x, places = 3) {
  if (!isNumber(x)) return DASH;
  if (x === 0) return '0';
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(places - 1).replace('-', '−').replace('e+', 'e').replace('e-', 'e−');
  const text = size >= 10 ** places ? Math.round(x).toLocaleString('en') : String(Number(x.toPrecision(places)));
  return text.replace('-', '−');
}

/** The largest step of `names` that leaves `x` at or above one. */
function stepOf(x, base, names) {
  const step = x > 0 ? Math.floor(Math.log(x) / Math.log(base)) : 0;
  return Math.min(Math.max(step, 0), names.length - 1);
}

function scaled(x, base, names, unit) {
  if (!isNumber(x)) return DASH;
  const step = stepOf(Math.abs(x), base, names);
  return withUnit(digits(x / base ** step), names[step] + unit);
}

const bytes = (x) => scaled(x, 1024, BINARY, '');
const bytesPerSecond = (x) => scaled(x, 1024, BINARY, '/s');
const flopsPerSecond = (x) => scaled(x, 1000, DECIMAL, 'FLOP/s');
const operations = (x, unit) => scaled(x, 1000, DECIMAL, unit);
const count = (x) => (isNumber(x) ? Math.round(x).toLocaleString('en').replace('-', '−') : DASH);
const decibels = (x) => (isNumber(x) ? withUnit(x.toFixed(1).replace('-', '−'), 'dB') : DASH);

/** Six decimals: cosines lie close to one. */
const cosineText = (x) => (isNumber(x) ? (x === 1 ? '1' : x.toFixed(6).replace('-', '−')) : DASH);

function seconds(x) {
  if (!isNumber(x)) return DASH;
  if (x === 0) return withUnit('0', 's');
  if (x < 1e-3) return withUnit(digits(x * 1e6), 'µs');
  if (x < 1) return withUnit(digits(x * 1e3), 'ms');
  if (x < 120) return withUnit(digits(x), 's');
  const whole = Math.round(x);
  if (x < 7200) return `${withUnit(Math.floor(whole / 60), 'min')} ${withUnit(whole % 60, 's')}`;
  return `${withUnit(Math.floor(whole / 3600), 'h')} ${withUnit(Math.floor((whole % 3600) / 60), 'min')}`;
}

function percent(share) {
  if (!isNumber(share)) return DASH;
  const value = share * 100;
  if (value === 0 || Math.abs(value) >= 10) return withUnit(value.toFixed(0).replace('-', '−'), '%');
  if (value > 0 && value < 1e-3) return withUnit('< 0.001', '%');
  return withUnit(Math.abs(value) >= 0.1 ? value.toFixed(1) : digits(value, 1), '%');
}

function byUnit(x, unit) {
  const known = {bytes, seconds, flops: (v) => operations(v, 'FLOP'), 'bytes/s': bytesPerSecond, s: seconds, B: bytes};
  return known[unit] ? known[unit](x) : withUnit(digits(x, 4), isNumber(x) && unit ? unit : '');
}
