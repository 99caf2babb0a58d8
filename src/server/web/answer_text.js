// Text of a message as elements, built of text nodes only: nothing a model writes becomes markup.

import { make, set_text } from './dom.js';
import { is_settled, items_of, next_block } from './markdown_blocks.js';
import { inline_nodes } from './markdown_inline.js';
import { maths_alone } from './maths.js';

const kDeepest = 6;  // quotes and lists in each other
const kSheet = 64;   // blocks

function copy_button(text_of) {
  const button = make('button', 'quiet copy', 'Copy');
  button.type = 'button';
  button.setAttribute('aria-label', 'Copy the code');
  button.addEventListener('click', async () => {
    button.textContent = await copy_text(text_of()) ? 'Copied' : 'Not copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
  return button;
}

// True if it is on the clipboard. A page that came over plain HTTP has no clipboard but the old one.
export async function copy_text(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* no permission, or no clipboard at all */ }
  const field = make('textarea', 'visually-hidden');
  field.value = text;
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  focused?.focus();
  return done;
}

// Long code is laid out in pieces: a line more moves only the last one.
const code_piece = (text) => make('span', 'piece', text);

function code_element({ text, language }) {
  const inside = make('code', '', code_piece(text));
  const pre = make('pre', '', inside);
  pre.tabIndex = 0;  // long lines scroll, by keyboard too
  return make('div', 'code', make('p', 'code-head', make('span', '', language || 'code'),
    copy_button(() => inside.textContent.replace(/\n$/, ''))), pre);
}

function table_element({ head, rows, aligns }) {
  const cell = (tag, text, i) => {
    const element = make(tag, aligns[i] && aligns[i] !== 'left' ? aligns[i] : '', ...inline_nodes(text ?? ''));
    if (tag === 'th') element.scope = 'col';
    return element;
  };
  const row = (tag, cells) => make('tr', '', ...aligns.map((_, i) => cell(tag, cells[i], i)));
  const table = make('table', '');
  if (head) table.append(make('thead', '', row('th', head)));
  table.append(make('tbody', '', ...rows.map((cells) => row('td', cells))));
  const frame = make('div', 'table', table);
  frame.tabIndex = 0;
  return frame;
}

function list_element({ ordered, text }, depth) {
  const items = items_of(text);
  const list = make(ordered ? 'ol' : 'ul', '');
  if (ordered && items[0].number !== 1) list.start = items[0].number;
  for (const item of items) {
    const element = make('li', '');
    const task = item.text.match(/^\[([ xX])\]\s+/);
    if (task) {
      element.className = 'task';
      element.append(make('span', 'tick', task[1] === ' ' ? '☐ ' : '☑ '));
    }
    element.append(...blocks_inside(task ? item.text.slice(task[0].length) : item.text, depth + 1));
    list.append(element);
  }
  return list;
}

function element_of(block, depth) {
  switch (block.kind) {
    case 'code': return code_element(block);
    case 'heading': return make(`h${Math.min(6, block.level + 3)}`, `level-${block.level}`, ...inline_nodes(block.text));
    case 'rule': return make('hr', '');
    case 'quote': return make('blockquote', '', ...blocks_inside(block.text, depth + 1));
    case 'list': return list_element(block, depth);
    case 'table': return table_element(block);
    case 'maths': return maths_alone(block.text);
    default: return make('p', block.goes_on ? 'goes-on' : '', ...inline_nodes(block.text));
  }
}

function blocks_inside(text, depth) {
  if (depth > kDeepest) return [make('p', '', text)];
  const elements = [];
  for (let at = 0, state = null; ;) {
    const block = next_block(text, at, state);
    if (!block) return elements;
    elements.push(element_of(block, depth));
    [at, state] = [block.next, block.after];
  }
}

// Shows a growing text: only what may still change, which is bounded, is read and built again.
export class TextView {
  #text = '';
  #at = 0;         // all before it stands
  #state = null;   // that it leaves to what follows
  #code = null;    // the last code among it, which may go on
  #sheet = null;   // takes what is new: a browser lays out few children with contents faster than many
  #drafts = [];    // elements of what follows, in order

  constructor(element) {
    this.element = element;
  }

  show(text) {
    if (text === this.#text) return;
    if (!text.startsWith(this.#text.slice(0, this.#at))) this.#forget();
    this.#text = text;
    const before = this.#drafts;
    this.#drafts = [];
    let code = this.#code;
    for (let at = this.#at, state = this.#state; ;) {
      const block = next_block(text, at, state);
      if (!block) break;
      const element = this.#put(block, before, code);
      this.#drafts.push(element);
      if (block.kind === 'code' && !block.goes_on) code = element.querySelector('code');
      [at, state] = [block.next, block.after];
      if (!is_settled(text, at, state)) continue;
      [this.#at, this.#state, this.#code, this.#drafts] = [at, state, code, []];
      if (this.#sheet.childElementCount >= kSheet && !before.length) this.#sheet = null;
    }
    for (const element of before) element.remove();
  }

  // In place of the first of `before`, which it takes out.
  #put(block, before, code) {
    const is_piece = block.kind === 'code' && block.goes_on;
    if (before.length && is_piece !== (before[0].className === 'piece')) {
      for (const element of before.splice(0)) element.remove();
    }
    const old = before.shift();
    if (is_piece) {
      if (!old) code.append(code_piece(block.text));
      else set_text(old, block.text);
      return old ?? code.lastElementChild;
    }
    if (block.kind === 'code' && old?.dataset.kind === 'code') {
      set_text(old.querySelector('.piece'), block.text);  // its button keeps the focus
      set_text(old.querySelector('.code-head span'), block.language || 'code');
      return old;
    }
    const element = element_of(block, 0);
    element.dataset.kind = block.kind;
    if (old) old.replaceWith(element);
    else this.#open_sheet().append(element);
    return element;
  }

  #open_sheet() {
    if (!this.#sheet) this.element.append(this.#sheet = make('div', 'sheet'));
    return this.#sheet;
  }

  #forget() {
    this.element.replaceChildren();
    [this.#text, this.#at, this.#state, this.#code, this.#sheet, this.#drafts] = ['', 0, null, null, null, []];
  }
}
