// A growing Markdown text as top-level blocks. Each call reads one block from a place that is the start of one, so a text
// that grows is read again only from its last block on; and no block is longer than a bound, so that is never much. What is
// longer goes on in a next block that says so (`goes_on`).

const kMost = 8192;  // characters of a block, and of a line that are looked at

// None of these goes back and forth over a line: 8,000 blanks must not take a second.
const kFence = /^ {0,3}(`{3,}|~{3,})([^`\n]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const kRule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const kQuote = /^ {0,3}>[ ]?/;
export const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )|( )|$)/;
const kDelimiters = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const kMaths = [[/^ {0,3}\$\$/, '$$'], [/^ {0,3}\\\[/, '\\]']];

// Where the line at `at` ends (its \n not included), and where the next begins.
function line_at(text, at) {
  const found = text.indexOf('\n', at);
  const end = found < 0 ? text.length : found;
  return { text: text.slice(at, Math.min(end, at + kMost)), end, next: found < 0 ? text.length : end + 1, whole: found >= 0 };
}

// A place to cut [at, at + kMost): after a line, else after a word, else anywhere but inside a character.
function cut_before(text, at) {
  const most = at + kMost;
  for (const mark of ['\n', ' ']) {
    const found = text.lastIndexOf(mark, most - 1);
    if (found > at + kMost / 2) return found + 1;
  }
  const code = text.charCodeAt(most - 1);
  return code >= 0xd800 && code < 0xdc00 ? most - 1 : most;
}

// The lines from `at` on for which keep(line, number) holds, but no more than a block may have.
function take_lines(text, at, keep) {
  let end = at;
  for (let number = 0; end < text.length; ++number) {
    const line = line_at(text, end);
    if (!keep(line.text, number)) break;
    if (line.next - at > kMost) return number && end > at ? { end, cut: true } : { end: cut_before(text, at), cut: true };
    end = line.next;
  }
  return { end, cut: false };
}

export const cells_of = (line) => {
  const cells = line.trim().replace(/^\|/, '').split(/(?<!\\)\|/);
  if (cells.length > 1 && cells.at(-1).trim() === '') cells.pop();
  return cells.slice(0, 64).map((cell) => cell.trim().replaceAll('\\|', '|'));
};

const aligned = (cell) => (/^:-+:$/.test(cell) ? 'center' : /-:$/.test(cell) ? 'right' : 'left');

const starts_other = (line) => kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line)
  || /^ {0,3}([-*+]|1[.)]) /.test(line) || kMaths.some(([begin]) => begin.test(line));

function code_block(text, at, fence, language, goes_on) {
  const closes = (line) => line.length < 256 && line.trim().startsWith(fence) && line.trim() === fence[0].repeat(line.trim().length);
  const { end, cut } = take_lines(text, at, (line) => !closes(line));
  const closed = !cut && end < text.length;
  return { kind: 'code', text: text.slice(at, end), language, goes_on, next: closed ? line_at(text, end).next : end,
    after: cut ? { fence, language } : null };
}

function table_block(text, at, aligns, goes_on) {
  const { end, cut } = take_lines(text, at, (line) => line.includes('|'));
  const rows = text.slice(at, end).split('\n').filter((line) => line.trim());
  const head = goes_on ? null : cells_of(rows[0]);
  return { kind: 'table', head, rows: rows.slice(goes_on ? 0 : 2).map(cells_of), aligns, goes_on, next: end,
    after: cut ? { aligns } : null };
}

function list_block(text, at) {
  const ordered = /\d/.test(line_at(text, at).text.match(kItem)[2]);
  const same = (line) => {
    const found = line.match(kItem);
    return found && !kRule.test(line) && /\d/.test(found[2]) === ordered;
  };
  let blank = false;
  const { end } = take_lines(text, at, (line, number) => {
    const was_blank = blank;
    blank = line.trim() === '';
    if (number === 0 || blank || same(line) || /^ {2,}|^\t/.test(line)) return true;
    return !was_blank && !starts_other(line);  // a paragraph goes on without its indent
  });
  return { kind: 'list', ordered, text: text.slice(at, end), next: end, after: null };
}

// Formulas between $$ or \[ and \]; null if that is not what it is.
function maths_block(text, at, line) {
  const [begin, close] = kMaths.find(([pattern]) => pattern.test(line)) ?? [];
  if (!begin) return null;
  const from = at + line.match(begin)[0].length;
  const inside = text.slice(from, from + kMost).split(/\n[ \t]*\n/, 1)[0];  // no formula has an empty line
  const found = inside.indexOf(close);
  if (found < 0) {  // perhaps it is still being written
    return from + inside.length === text.length ? { kind: 'paragraph', text: text.slice(at), next: text.length, after: null } : null;
  }
  const end = line_at(text, from + found + 2);
  if (end.text.trim()) return null;  // words after it: a formula inside a paragraph
  return { kind: 'maths', text: text.slice(from, from + found), next: end.next, after: null };
}

function paragraph_block(text, at) {
  const { end, cut } = take_lines(text, at, (line, number) => line.trim() !== '' && (number === 0 || !starts_other(line)));
  return { kind: 'paragraph', text: text.slice(at, end).trimEnd(), next: end, after: cut ? { words: true } : null };
}

// The block that begins at `at`, in the state that the one before has left (`after`); null at the end.
export function next_block(text, at, state) {
  if (at < text.length && state?.fence) return code_block(text, at, state.fence, state.language, true);
  if (state?.aligns && line_at(text, at).text.includes('|')) return table_block(text, at, state.aligns, true);
  if (state?.words && line_at(text, at).text.trim()) return { ...paragraph_block(text, at), goes_on: true };
  while (at < text.length && !line_at(text, at).text.trim()) at = Math.min(line_at(text, at).next, at + kMost);
  if (at >= text.length) return null;
  const line = line_at(text, at);

  const fence = line.text.match(kFence);
  if (fence && line.end - at < kMost) return code_block(text, line.next, fence[1], fence[2].trim().slice(0, 40), false);
  const heading = line.text.match(kHeading);
  if (heading && line.end - at < kMost) {
    const words = line.text.slice(heading[0].length).trim().replace(/(?:^|[ \t])#+$/, '');
    return { kind: 'heading', level: heading[1].length, text: words.trim(), next: line.next, after: null };
  }
  if (kRule.test(line.text)) return { kind: 'rule', next: line.next, after: null };
  if (kQuote.test(line.text)) {
    const { end } = take_lines(text, at, (quoted, number) => number === 0 || kQuote.test(quoted));
    return { kind: 'quote', text: text.slice(at, end).split('\n').map((quoted) => quoted.replace(kQuote, '')).join('\n'), next: end, after: null };
  }
  if (kItem.test(line.text)) return list_block(text, at);
  if (line.whole && line.text.includes('|')) {
    const below = line_at(text, line.next).text;
    if (kDelimiters.test(below) && below.includes('-') && cells_of(below).length === cells_of(line.text).length)
      return table_block(text, at, cells_of(below).map(aligned), false);
  }
  return maths_block(text, at, line.text) ?? paragraph_block(text, at);
}

// Whether what comes after `text` can change no block that ends before `at`: the line that follows it is complete.
export function is_settled(text, at, state) {
  if (text.length - at > kMost) return true;
  const blanks = state?.fence ? 0 : text.slice(at).search(/\S/);
  return blanks >= 0 && text.indexOf('\n', at + blanks) >= 0;
}

// The items of a list: [{number, text}], the text without the indent of its item.
export function items_of(text) {
  const items = [];
  let indent = 0;
  for (const line of text.split('\n')) {
    const found = line.match(kItem);
    if (found && (!items.length || found[1].length < Math.max(2, indent))) {
      indent = found[0].length;
      items.push({ number: parseInt(found[2], 10), lines: [line.slice(found[0].length)] });
    } else {
      const spaces = line.match(/^[ \t]*/)[0].replaceAll('\t', '    ').length;
      items.at(-1)?.lines.push(line.replaceAll('\t', '    ').slice(Math.min(spaces, indent)));
    }
  }
  return items.map(({ number, lines }) => ({ number, text: lines.join('\n').trimEnd() }));
}
