// What each pass of a request was fed, added to the KV cache and drew: the table of `quire explain --view steps`.

import { make } from './dom.js';
import { count, ms, plural, quoted } from './format.js';

const kShown = 40;  // passes: the first of them are the prompt, the last the newest tokens

const share = (probability) => (probability == null ? '' : ` ${Math.round(probability * 1000) / 10} %`);

function cell(class_name, ...inside) {
  return make('td', class_name, ...inside);
}

function drawn_words({ drawn, draws }) {
  if (!draws) return 'nothing: the prompt goes on';
  if (!drawn.length) return plural(draws, 'token');  // of another client
  return drawn.map(({ text, probability }) => quoted(text) + share(probability)).join(', ');
}

const rival_words = ({ drawn }) =>
  drawn.flatMap(({ rivals }) => rivals).map(({ text, probability }) => quoted(text) + share(probability)).join(', ');

function row(pass, number, with_rivals) {
  const fed = make('span', 'fed', pass.text == null ? '' : quoted(pass.text));
  const element = make('tr', pass.phase,
    cell('number', count(number)), cell('', `${count(pass.tokens)} `, fed),
    cell('number', `${count(pass.entries_before)} → ${count(pass.entries_after)}`), cell('number', ms(pass.ms)),
    cell('', drawn_words(pass)));
  if (with_rivals) element.append(cell('', rival_words(pass)));
  return element;
}

// Of GET /requests/ID/steps.
export function steps_table({ passes, skipped }) {
  const with_rivals = passes.some(({ drawn }) => drawn.some(({ rivals }) => rivals.length));
  const heads = ['Pass', 'Fed', 'KV entries', 'Took', 'Drew', ...(with_rivals ? ['Rivals'] : [])];
  const numbers = new Set(['Pass', 'KV entries', 'Took']);
  const body = make('tbody');
  const head_count = passes.length > kShown ? kShown / 2 : passes.length;
  passes.forEach((pass, i) => {
    if (i < head_count || i >= passes.length - kShown / 2) body.append(row(pass, skipped + i + 1, with_rivals));
    else if (i === head_count) {
      const left_out = cell('', `${count(passes.length - kShown)} passes not shown`);
      left_out.colSpan = heads.length;
      body.append(make('tr', 'left-out', left_out));
    }
  });
  const head = make('tr', '', ...heads.map((text) => make('th', numbers.has(text) ? 'number' : '', text)));
  const table = make('table', 'steps', make('thead', '', head), body);
  const frame = make('div', 'table-frame', table);
  frame.tabIndex = 0;  // it scrolls, by keyboard too
  frame.setAttribute('role', 'region');
  frame.setAttribute('aria-label', 'Steps of the request');
  return frame;
}
