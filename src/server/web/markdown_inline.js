// What stands inside a block, as DOM nodes: emphasis, code, links, formulas. Text only ever enters as text. Looks ahead no
// further than a bound, so that no text takes long.

import { make } from './dom.js';
import { maths_inside } from './maths.js';

const kReach = 1000;  // characters within which what was opened is closed
const kDeepest = 5;
const kMarks = /[\\`*_~[!<$\n]|https?:\/\//g;
const kSchemes = new Set(['http:', 'https:', 'mailto:']);

// An address that a model may lead to; null for all others (javascript:, data:, anything of this server).
export function safe_address(text) {
  try {
    const url = new URL(text);
    return kSchemes.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, ...inside) {
  const element = make('a', '', ...inside);
  element.href = address;
  element.rel = 'noopener noreferrer nofollow';
  element.target = '_blank';
  element.referrerPolicy = 'no-referrer';
  return element;
}

const within = (text, mark, from, end) => {
  const found = text.slice(from, Math.min(end, from + kReach)).indexOf(mark);
  return found < 0 ? -1 : from + found;
};
const is_word = (character) => character !== undefined && /[\p{L}\p{N}_]/u.test(character);
const is_space = (character) => character === undefined || /\s/.test(character);

// Each takes what begins at `at` and returns [node, where it ends], or null.

function escaped(text, at) {
  const close = text[at + 1] === '(' ? '\\)' : text[at + 1] === '[' ? '\\]' : null;
  if (close) {
    const end = within(text, close, at + 2, text.length);
    if (end > 0) return [maths_inside(text.slice(at + 2, end), text.slice(at, end + 2)), end + 2];
  }
  return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '') ? [text[at + 1], at + 2] : null;
}

function code(text, at) {
  const run = text.slice(at, at + 32).match(/^`+/)[0];
  let end = within(text, run, at + run.length, text.length);
  while (end >= 0 && (text[end + run.length] === '`' || text[end - 1] === '`')) {
    let past = end + run.length;
    while (text[past] === '`') ++past;
    end = past - at < kReach ? within(text, run, past, text.length) : -1;
  }
  if (end < 0) return [run, at + run.length];
  const inside = text.slice(at + run.length, end);
  return [make('code', '', inside.replace(/^ (.*[^ ].*) $/s, '$1')), end + run.length];
}

function emphasis(text, at, depth) {
  const mark = text[at];
  let length = 1;
  while (text[at + length] === mark && length < 4) ++length;
  if (length === 4 || (mark === '~' && length !== 2) || is_space(text[at + length])) return [text.slice(at, at + length), at + length];
  if (mark === '_' && is_word(text[at - 1])) return [text.slice(at, at + length), at + length];
  const run = mark.repeat(length);
  for (let end = within(text, run, at + length, text.length); end >= 0 && end - at < kReach; end = within(text, run, end + 1, text.length)) {
    let past = end + length;
    while (text[past] === mark) ++past;
    if (is_space(text[end - 1]) || text[end - 1] === '\\' || (mark === '_' && is_word(text[past]))) continue;
    if (past - end !== length && length === 1) { end = past - 1; continue; }
    const inside = inline_nodes(text.slice(at + length, past - length), depth + 1);
    if (mark === '~') return [make('del', '', ...inside), past];
    if (length === 1) return [make('em', '', ...inside), past];
    return [make('strong', '', ...(length === 3 ? [make('em', '', ...inside)] : inside)), past];
  }
  return [run, at + length];
}

const kAddress = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/;

// Where each [ is closed, in one go: looking for every one of them would take long where there are many.
function closers_of(text) {
  const closers = new Map();
  const open = [];
  for (let at = 0; at < text.length; ++at) {
    const code = text.charCodeAt(at);
    if (code === 0x5c) ++at;
    else if (code === 0x5b) open.push(at);
    else if (code === 0x5d && open.length) closers.set(open.pop(), at);
  }
  return closers;
}

// [words](address), and an image as a link to it: pictures of strangers are not loaded.
function bracket(text, at, depth, closers) {
  const from = text[at] === '!' ? at + 2 : at + 1;
  const end = closers.get(from - 1);
  if (end === undefined || text[end + 1] !== '(' || end - from > kReach) return null;
  const found = text.slice(end + 1, end + 1 + 2 * kReach).match(kAddress);
  if (!found) return null;
  const address = safe_address(found[1] ?? found[2] ?? '');
  if (!address) return null;  // stays as it was written
  const words = inline_nodes(text.slice(from, end), depth + 1, true);
  return [link(address, ...(words.length ? words : [address])), end + 1 + found[0].length];
}

function bare_address(text, at) {
  const found = text.slice(at, at + 2 * kReach).match(/^https?:\/\/[^\s<>"'`]+/)?.[0].replace(/[.,;:!?*_~)\]]+$/, '');
  const address = found && safe_address(found);
  return address ? [link(address, found), at + found.length] : null;
}

function angle(text, at) {
  const found = text.slice(at, at + kReach).match(/^<((?:https?:\/\/|mailto:)[^\s<>]+)>/);
  const address = found && safe_address(found[1]);
  return address ? [link(address, found[1]), at + found[0].length] : null;
}

// $x$, but not 5$ and 6$: a formula has no blank at its ends and no digit after it.
function dollars(text, at) {
  if (is_space(text[at + 1]) || text[at + 1] === '$') {
    const end = text[at + 1] === '$' ? within(text, '$$', at + 2, text.length) : -1;
    return end > at + 2 ? [maths_inside(text.slice(at + 2, end), text.slice(at, end + 2)), end + 2] : null;
  }
  const end = within(text, '$', at + 1, text.length);
  if (end < 0 || is_space(text[end - 1]) || /\d/.test(text[end + 1] ?? '') || text.slice(at, end).includes('\n\n')) return null;
  return [maths_inside(text.slice(at + 1, end), text.slice(at, end + 1)), end + 1];
}

function node_at(text, at, depth, in_link, closers) {
  switch (text[at]) {
    case '\\': return escaped(text, at);
    case '`': return code(text, at);
    case '*': case '_': case '~': return emphasis(text, at, depth);
    case '[': return in_link ? null : bracket(text, at, depth, closers());
    case '!': return text[at + 1] === '[' && !in_link ? bracket(text, at, depth, closers()) : null;
    case '<': return in_link ? null : angle(text, at);
    case '$': return dollars(text, at);
    case 'h': return in_link || is_word(text[at - 1]) ? null : bare_address(text, at);
    default: return null;
  }
}

// Nodes and strings, for append().
export function inline_nodes(text, depth = 0, in_link = false) {
  if (depth > kDeepest) return text ? [text] : [];
  const nodes = [];
  let plain = '';
  let at = 0;
  let found = null;
  const closers = () => (found ??= closers_of(text));
  const put = (node) => {
    if (typeof node === 'string') plain += node;
    else {
      if (plain) nodes.push(plain);
      plain = '';
      nodes.push(node);
    }
  };
  while (at < text.length) {
    kMarks.lastIndex = at;
    const mark = kMarks.exec(text);
    const next = mark ? mark.index : text.length;
    plain += text.slice(at, next);
    if (!mark) break;
    const [node, end] = node_at(text, next, depth, in_link, closers) ?? [text[next], next + 1];
    put(node);
    at = end;
  }
  if (plain) nodes.push(plain);
  return nodes;
}
