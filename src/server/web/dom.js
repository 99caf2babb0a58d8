// Elements from data. Text only ever enters as text.

export const by_id = (id) => document.getElementById(id);

// make('li', 'events', 'text', child, ...): a tag, a class list, then what is inside.
export function make(tag, class_name, ...inside) {
  const element = document.createElement(tag);
  if (class_name) element.className = class_name;
  element.append(...inside);
  return element;
}

// Leaves an unchanged text alone: selections, screen readers and the layout stay undisturbed.
export function set_text(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A canvas of this size in CSS pixels, sharp on any screen; returns a cleared context in CSS pixels.
export function canvas_context(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [device_width, device_height] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== device_width || canvas.height !== device_height) {
    canvas.width = device_width;
    canvas.height = device_height;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
