// Figures as text, in the words and units of the command line: 64 ms, 5.4 ms, 23.0 kB, 1,024.

const kThin = '\u2009';

export const count = (value) => Math.round(value).toLocaleString('en-US');

export const plural = (value, word) => `${count(value)} ${word}${Math.round(value) === 1 ? '' : 's'}`;

function three_digits(value) {
  if (value < 9.995) return value.toFixed(2);
  return value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

// [number, unit]
export function ms_parts(ms) {
  if (ms < 9.95) return [ms.toFixed(1), 'ms'];
  if (ms < 999.5) return [ms.toFixed(0), 'ms'];
  if (ms < 59_950) return [three_digits(ms / 1000), 's'];
  return [count(ms / 60_000), 'min'];
}
export const ms = (value) => (value == null ? '–' : ms_parts(value).join(' '));

// How long ago, for a figure that nobody wants to see tick.
export function age(ms) {
  if (ms < 90_000) return `${count(ms / 1000)} s`;
  return ms < 5_400_000 ? `${count(ms / 60_000)} min` : `${count(ms / 3_600_000)} h`;
}

export function bytes(value) {
  if (value < 1000) return `${count(value)} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let scaled = value / 1000;
  let unit = 0;
  while (scaled >= 999.5 && unit + 1 < units.length) {
    scaled /= 1000;
    ++unit;
  }
  return `${scaled < 99.95 ? scaled.toFixed(1) : scaled.toFixed(0)} ${units[unit]}`;
}

export const rate = (value) => (value < 99.95 ? value.toFixed(1) : count(value));

export const percent = (share) => `${Math.round(share * 100)}${kThin}%`;

// The server's clock: minutes and seconds since it started.
export function clock(at_ms) {
  const seconds = at_ms / 1000;
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor(seconds / 60) % 60;
  const rest = (seconds % 60).toFixed(1).padStart(4, '0');
  return hours ? `${hours}:${String(minutes).padStart(2, '0')}:${rest}` : `${minutes}:${rest}`;
}

// "chatcmpl-b4634469234ee263" -> "b463"
export const short_id = (id) => id.slice(id.lastIndexOf('-') + 1).slice(0, 4);

// " (never seen)", or nothing when all was cached but the last token, which is always computed.
export const why_missed = ({ cached_tokens, prompt_tokens, why }) =>
  (why && cached_tokens < prompt_tokens - 1 ? ` (${why})` : '');

export function sentence(text) {
  const trimmed = text.trim();
  if (!trimmed) return '';
  const upper = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(upper) ? upper : `${upper}.`;
}

// A token's text, on one line.
export const quoted = (text) => `“${text.replaceAll('\n', '↵')}”`;

export const list = (words) =>
  words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} and ${words.at(-1)}`;

// [3, 4, 5, 9] -> "3–5, 9"; REQUIRES: ascending
export function ranges(numbers) {
  const parts = [];
  for (let at = 0; at < numbers.length;) {
    let end = at;
    while (numbers[end + 1] === numbers[end] + 1) ++end;
    parts.push(end === at ? `${numbers[at]}` : `${numbers[at]}–${numbers[end]}`);
    at = end + 1;
  }
  return parts.join(', ');
}

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

export const gaps = (moments) => moments.slice(1).map((moment, i) => moment - moments[i]);
