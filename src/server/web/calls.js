// Calls of tools as elements: what the model asks for, and a form for what its tools say.

import { make } from './dom.js';

const pretty = (text) => {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
};

// Adds what a chunk says of calls to those of a node.
export function add_call_pieces(node, pieces) {
  for (const { index = 0, id, function: said } of pieces) {
    node.calls ??= [];
    const call = (node.calls[index] ??= { id: '', name: '', arguments: '' });
    call.id = id ?? call.id;
    call.name += said?.name ?? '';
    call.arguments += said?.arguments ?? '';
  }
}

// As the server wants to see them in the conversation.
export const calls_message = (calls) => calls.map(({ id, name, arguments: text }) => ({ id, type: 'function', function: { name, arguments: text } }));

export function calls_element(calls) {
  return make('ul', 'calls', ...calls.map((call) => make('li', 'call',
    make('p', 'call-name', 'Calls ', make('b', '', call.name)), make('pre', 'call-arguments', pretty(call.arguments)))));
}

// One field for each call. on_send: the results, [{id, name, content}].
export function results_form(calls, on_send) {
  const fields = calls.map((call) => {
    const field = make('textarea', '');
    field.rows = 2;
    return { call, field };
  });
  const send = make('button', 'primary', 'Go on');
  const form = make('form', 'results', ...fields.map(({ call, field }) => make('label', 'wide', `What ${call.name} returns`, field)),
    make('p', 'edit-foot', make('span', 'hint', 'The model goes on with it.'), send));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    on_send(fields.map(({ call, field }) => ({ id: call.id, name: call.name, content: field.value })));
  });
  return form;
}
