// Formulas. Without a library for them they stand as they were written, in the face of code.

import { make } from './dom.js';

// Inside a line: `written` is the formula with its marks.
export const maths_inside = (formula, written) => make('code', 'formula', written);

// On lines of its own.
export function maths_alone(formula) {
  const element = make('pre', 'formula', make('code', '', formula.trim()));
  element.tabIndex = 0;
  return element;
}
