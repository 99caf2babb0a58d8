// The figures of this moment: rates, times, and what share of the machine is in use.

import { by_id, make, set_text } from './dom.js';
import { age, bytes, count, gaps, median, ms_parts, percent, plural, rate } from './format.js';

const kRecent = 16;  // requests that medians are taken over

class Meter {
  constructor(name, fills) {
    this.value = make('span', 'meter-value', '–');
    this.fills = fills.map((fill) => make('span', fill));
    this.bar = make('div', 'meter', ...this.fills);
    this.bar.setAttribute('role', 'meter');
    this.bar.setAttribute('aria-label', name);
    this.bar.setAttribute('aria-valuemin', '0');
    this.bar.setAttribute('aria-valuemax', '100');
    this.element = make('div', 'meter-row', make('span', 'meter-name', name), this.bar, this.value);
  }

  show(shares, text) {
    shares.forEach((share, i) => { this.fills[i].style.width = `${Math.min(100, share * 100)}%`; });
    this.bar.setAttribute('aria-valuenow', String(Math.round(Math.min(1, shares[0]) * 100)));
    this.bar.setAttribute('aria-valuetext', text);
    set_text(this.value, text);
  }
}

const bandwidth = new Meter('Bandwidth', ['fill-memory']);
const arithmetic = new Meter('Arithmetic', ['fill-arithmetic']);
const kv_used = new Meter('KV cache', ['fill-held', 'fill-cached']);
// Shown where pages and weights are in a device's memory: weights, pages, and all else that is taken.
const device_used = new Meter('GPU memory', ['fill-memory', 'fill-held', 'fill-cached']);
by_id('meters').append(bandwidth.element, arithmetic.element, kv_used.element);

function show_time(element, value) {
  if (value == null) return set_text(element, '–');
  const [number, unit] = ms_parts(value);
  if (element.textContent === number + unit) return undefined;
  return element.replaceChildren(number, make('span', 'unit', unit));
}

const median_words = (value) => `median ${value == null ? '–' : ms_parts(value).join(' ')}`;

export function show_requests({ now_ms, running, waiting, requests, rates, machine }) {
  set_text(by_id('figure-answer'), rate(rates.answer_tok_s));
  set_text(by_id('figure-prompt'), rate(rates.prompt_tok_s));

  const recent = requests.filter(({ ttft_ms }) => ttft_ms != null).slice(0, kRecent);
  const firsts = recent.map(({ ttft_ms }) => ttft_ms);
  const between = recent.map(({ token_ms }) => gaps(token_ms));
  show_time(by_id('figure-first'), firsts[0]);
  set_text(by_id('figure-first-median'), median_words(median(firsts)));
  show_time(by_id('figure-between'), between.find((list) => list.length)?.at(-1));
  set_text(by_id('figure-between-median'), median_words(median(between.flat())));

  bandwidth.show([rates.bandwidth_share], `${percent(rates.bandwidth_share)} of ${machine.read_gb_s.toFixed(1)} GB/s`);
  arithmetic.show([rates.arithmetic_share], `${percent(rates.arithmetic_share)} of ${count(machine.int8_gops)} GOPS`);
  set_text(by_id('bound'), bound_sentence(running, waiting, rates.bound, machine));
  const ended = Math.max(...requests.map(({ finished_ms }) => finished_ms ?? 0));
  const idle = running + waiting === 0 && ended > 0;
  set_text(by_id('request-counts'), idle ? `0 running; the last ended ${age(now_ms - ended)} ago`
    : `${count(running)} running, ${count(waiting)} waiting`);
}

function bound_sentence(running, waiting, bound, machine) {
  if (running + waiting === 0) return 'Nothing runs.';
  const threads = machine.threads ? `, with ${plural(machine.threads, 'thread')}` : '';
  if (bound === 'memory') return `Reading memory is what takes the time now${threads}.`;
  if (bound === 'arithmetic') return `Arithmetic is what takes the time now${threads}.`;
  return `Neither memory nor arithmetic is near its limit now${threads}.`;
}

function show_device({ total_bytes, weights_bytes, kv_bytes, workspace_bytes, other_bytes, free_bytes }) {
  if (!device_used.element.isConnected) by_id('meters').append(device_used.element);
  const rest = workspace_bytes + other_bytes;
  device_used.show([weights_bytes, kv_bytes, rest].map((part) => part / total_bytes),
    `${bytes(weights_bytes)} weights, ${bytes(kv_bytes)} KV, ${bytes(free_bytes)} free of ${bytes(total_bytes)}`);
}

export function show_kv({ capacity_bytes, held_bytes, cached_bytes, device }) {
  if (device?.total_bytes) show_device(device);
  if (!capacity_bytes) return;
  kv_used.show([held_bytes / capacity_bytes, cached_bytes / capacity_bytes],
    `${bytes(held_bytes)} held of ${bytes(capacity_bytes)}`);
}
