// Helpers for elements. Text of the server becomes text nodes only.

export const byId = id => document.getElementById(id);

// Makes an element. Properties whose name begins with "on" are listeners; "class", "for", "role", "data-…" and "aria-…"
// are attributes; others are properties. Children are elements or texts.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (/^(class$|for$|role$|scope$|data-|aria-)/.test(name)) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

export function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

// Arrow keys move between the buttons of a tab list or radio group. `choose` is called with the chosen button.
export function choiceOf(buttons, attribute, choose) {
  const select = button => {
    for (const each of buttons) {
      each.setAttribute(attribute, String(each === button));
      each.tabIndex = each === button ? 0 : -1;
    }
    choose(button);
  };
  buttons.forEach((button, i) => {
    button.addEventListener("click", () => select(button));
    button.addEventListener("keydown", event => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(i + step + buttons.length) % buttons.length];
      next.focus();
      select(next);
    });
  });
}
