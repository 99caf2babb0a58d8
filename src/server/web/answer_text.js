// Text of a message as paragraphs and code, built of text nodes only: nothing a model writes becomes markup.

import { make } from './dom.js';

// [{code: bool, text}]; a fence that is still open counts as code up to the end.
export function blocks_of(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const flush = (code) => {
    if (code) blocks.push({ code, text: lines.join('\n') });
    else {
      for (const paragraph of lines.join('\n').split(/\n\s*\n/)) {
        if (paragraph.trim()) blocks.push({ code, text: paragraph.replace(/^\n+|\s+$/g, '') });
      }
    }
    lines = [];
  };
  for (const line of text.split('\n')) {
    const mark = line.match(/^\s*(`{3,}|~{3,})/)?.[1];
    if (fence === null && mark) {
      flush(false);
      fence = mark;
    } else if (fence !== null && mark?.startsWith(fence) && line.trim() === mark) {
      flush(true);
      fence = null;
    } else {
      lines.push(line);
    }
  }
  flush(fence !== null);
  return blocks;
}

function fill_paragraph(element, text) {
  const parts = text.split(/`([^`\n]+)`/);  // odd ones were between backticks
  element.replaceChildren(...parts.map((part, i) => (i % 2 ? make('code', '', part) : part)).filter((part) => part !== ''));
}

// Shows a growing text: only blocks that changed are touched.
export class TextView {
  #shown = [];

  constructor(element) {
    this.element = element;
  }

  show(text) {
    const blocks = blocks_of(text);
    while (this.element.children.length > blocks.length) this.element.lastElementChild.remove();
    blocks.forEach((block, i) => {
      const before = this.#shown[i];
      let element = this.element.children[i];
      if (element && before && before.code === block.code && before.text === block.text) return;
      if (!element || before.code !== block.code) {
        const fresh = block.code ? make('pre', '', make('code')) : make('p');
        if (block.code) fresh.tabIndex = 0;  // long lines scroll, by keyboard too
        if (element) element.replaceWith(fresh);
        else this.element.append(fresh);
        element = fresh;
      }
      if (block.code) element.firstChild.textContent = block.text;
      else fill_paragraph(element, block.text);
    });
    this.#shown = blocks;
  }
}
