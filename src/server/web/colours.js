// Which colour a request has, and the theme's colours for canvases.

// Each 3:1 or more against light and dark paper.
const kPalette = ['#3b7dd8', '#b8791a', '#8a63d2', '#2f8f5b', '#cf4f4a', '#1d8f9a', '#c4559b', '#7d8a2a'];

const slots = new Map();  // request id -> index into kPalette
let newest = -1;

// Stays the same as long as the request is known. Colours go round, so that neighbours in time differ.
export function request_colour(id) {
  if (!slots.has(id)) {
    newest = (newest + 1) % kPalette.length;
    slots.set(id, newest);
  }
  return kPalette[slots.get(id)];
}

export function forget_other_requests(known_ids) {
  for (const id of slots.keys()) {
    if (!known_ids.has(id)) slots.delete(id);
  }
}

let resolved = new Map();
document.addEventListener('themechange', () => { resolved = new Map(); });

// A custom property as a canvas understands it: light-dark() is resolved by the browser.
export function theme_colour(name) {
  if (!resolved.has(name)) {
    const probe = document.createElement('span');
    probe.hidden = true;
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    resolved.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(name);
}
