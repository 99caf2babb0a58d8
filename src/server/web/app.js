// Puts the page together: the views, the model's name, and the polling that feeds the live view.

import { ApiError, attention, cancel, get, models, pin, steps, unpin } from './api.js';
import { Chat } from './chat.js';
import { forget_other_requests } from './colours.js';
import { by_id, set_text } from './dom.js';
import { show_kv, show_requests } from './figures.js';
import { count } from './format.js';
import { listen_to_keys } from './keyboard.js';
import { PagesView } from './pages.js';
import { Poller } from './poll.js';
import { Timeline } from './timeline.js';

// What has been heard of the server so far.
const heard = { events: 0, steps: 0, now_ms: 0, waiting: 0, model: false };

const chat = new Chat({ on_activity: () => poller.kick(), engine_has_queue: () => heard.waiting > 0 });
listen_to_keys(chat);
const pages = new PagesView({
  conversation: () => chat.conversation(),
  pin: (messages) => act(pin(messages)),
  unpin: (number) => act(unpin(number)),
});
const timeline = new Timeline({
  on_cancel: (id) => act(cancel(id)), on_notice: (id) => pages.notice(id), load_steps: steps, load_attention: attention,
});

// A button that asks the server for something: failures are told, and the view is refreshed.
async function act(call) {
  try {
    await call;
  } catch (error) {
    set_text(by_id('server-state'), error.message);
  }
  poller.kick();
}

async function learn_model() {
  const [model] = (await models()).data;
  chat.model = model.id;
  heard.model = true;
  set_text(by_id('title-model'), model.id);
  set_text(by_id('model'), `${model.id}, ${count(model.max_model_len)} tokens of context`);
  document.title = `${model.id} – quire`;
}

const live_in_sight = () => by_id('live').offsetParent !== null;

async function read_server() {
  if (!heard.model) await learn_model();
  const in_sight = live_in_sight();
  const [kv, requests] = await Promise.all([
    in_sight ? get(`kv?since=${heard.events}`) : null,
    get(`requests?since=${heard.steps}`),
  ]);
  if (requests.now_ms < heard.now_ms) return start_over();
  requests.requests.sort((a, b) => b.submitted_ms - a.submitted_ms);  // rows keep their order when a request ends
  const changed = requests.running + requests.waiting > 0 || requests.steps.total !== heard.steps;
  heard.now_ms = requests.now_ms;
  heard.steps = requests.steps.total;
  heard.waiting = requests.waiting;
  forget_other_requests(new Set(requests.requests.map(({ id }) => id)));
  show_requests(requests);
  timeline.show(requests);
  if (!kv) return changed && in_sight;
  const moved = kv.events.total !== heard.events;
  heard.events = kv.events.total;
  show_kv(kv);
  pages.show(kv);
  return changed || moved;
}

// Its clock went back: another server answers now.
function start_over() {
  Object.assign(heard, { events: 0, steps: 0, now_ms: 0, model: false });
  timeline.forget();
  pages.forget();
  return true;
}

function show_server_state(state) {
  if (state === 'alive') return set_text(by_id('server-state'), '');
  if (!(state instanceof ApiError)) console.error(state);
  const silent = state instanceof ApiError && state.status === 0;
  return set_text(by_id('server-state'), silent ? 'The server does not answer; trying again.'
    : state instanceof ApiError ? state.message : 'The server said something this page does not understand; trying again.');
}

function show_view() {
  const view = location.hash === '#live' ? 'live' : 'chat';
  document.body.dataset.view = view;
  for (const name of ['chat', 'live']) {
    if (name === view) by_id(`show-${name}`).setAttribute('aria-current', 'page');
    else by_id(`show-${name}`).removeAttribute('aria-current');
  }
  if (location.hash === '#message') by_id('message').focus();  // the skip link, also from the live view
  poller?.kick();
}

let poller = null;
window.addEventListener('hashchange', show_view);
show_view();
poller = new Poller(read_server, show_server_state);
if (matchMedia('(min-width: 901px)').matches) by_id('message').focus();
