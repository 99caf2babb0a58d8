// Formulas, by KaTeX where the program was built with it; else they stand as they were written, in the face of code.

import { make } from './dom.js';
import { libraries } from './libraries.js';
import { load_script } from './scripts.js';

const kMost = 4000;  // characters of a formula
const kKept = 400;   // formulas that are not made again: the text they stand in is, while it grows

const made = new Map();  // formula -> element
let katex = null;        // the library, once it is there
let loading = null;

function load() {
  loading ??= (async () => {
    const sheet = make('link', '');
    sheet.rel = 'stylesheet';
    sheet.href = 'katex.min.css';
    document.head.append(sheet);
    await load_script('katex.js');
    katex = globalThis.katex;
  })().catch((error) => console.error(error));
  return loading;
}

// Null if it cannot be read: then it stays text.
function rendered(formula, alone) {
  const name = `${alone ? 'D' : 'T'}${formula}`;
  if (!made.has(name)) {
    const element = make(alone ? 'div' : 'span', 'maths');
    try {
      // Nothing that leads anywhere, and no macro that grows without end.
      katex.render(formula, element, { displayMode: alone, throwOnError: true, trust: false, strict: 'ignore', maxSize: 50, maxExpand: 200 });
      if (alone) element.tabIndex = 0;  // a long one scrolls
      made.set(name, element);
    } catch {
      made.set(name, null);
    }
    if (made.size > kKept) made.delete(made.keys().next().value);
  }
  return made.get(name)?.cloneNode(true) ?? null;
}

function shown(text, formula, alone) {
  if (!libraries.maths || formula.length > kMost) return text;
  if (katex) return rendered(formula, alone) ?? text;
  load().then(() => {
    const element = katex && rendered(formula, alone);
    if (element) text.replaceWith(element);
  });
  return text;
}

// Inside a line: `written` is the formula with its marks.
export const maths_inside = (formula, written) => shown(make('code', 'formula', written), formula.trim(), false);

// On lines of its own.
export function maths_alone(formula) {
  const element = make('pre', 'formula', make('code', '', formula.trim()));
  element.tabIndex = 0;
  return shown(element, formula.trim(), true);
}
