// One message of the conversation as an element.
import {byId, make} from "./dom.js";
import {render} from "./markdown.js";

const percent = logprob => (100 * Math.exp(logprob)).toFixed(1) + " %";
const visible = text => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

function showTip(span, token) {
  const tip = byId("tip");
  const rows = token.top_logprobs.length ? token.top_logprobs : [token];
  tip.replaceChildren(make("table", {}, make("tbody", {}, ...rows.map(each =>
    make("tr", {class: each.token === token.token ? "chosen" : ""},
         make("td", {}, visible(each.token)), make("td", {}, percent(each.logprob)))))));
  tip.hidden = false;
  const box = span.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + "px";
}

const hideTip = () => { byId("tip").hidden = true; };

// The tokens of an output, shaded by their improbability. The alternatives appear on hover; with the keyboard, arrow keys
// move from token to token.
function tokensOf(tokens) {
  const told = make("p", {class: "hide", "aria-live": "polite"});
  const spans = tokens.map((token, i) => {
    const span = make("span", {onmouseenter: () => showTip(span, token), onmouseleave: hideTip,
                               onclick: () => go(i)}, token.token);
    span.style.setProperty("--doubt", (0.55 * (1 - Math.exp(token.logprob))).toFixed(2));
    return span;
  });
  let at = -1;
  const go = next => {
    spans[at]?.classList.remove("at");
    at = Math.max(0, Math.min(spans.length - 1, next));
    spans[at].classList.add("at");
    spans[at].scrollIntoView({block: "nearest"});
    showTip(spans[at], tokens[at]);
    told.textContent = visible(tokens[at].token) + " " + tokens[at].top_logprobs
      .map(each => visible(each.token) + " " + percent(each.logprob)).join(", ");
  };
  return make("div", {}, make("div", {
    class: "tokens", tabIndex: 0, role: "group", "aria-label": "Tokens with probabilities; use the arrow keys",
    onkeydown: event => {
      const step = {ArrowRight: 1, ArrowLeft: -1, Home: -spans.length, End: spans.length}[event.key];
      if (!step || !spans.length) return;
      event.preventDefault();
      go(at + step);
    },
    onblur: hideTip,
  }, ...spans), told);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;  // incomplete
  }
}

function callOf(call, message, actions) {
  const body = make("div", {class: "call"},
    make("span", {class: "quiet"}, "Tool call "), make("code", {}, call.function.name),
    make("pre", {tabIndex: 0}, make("code", {}, pretty(call.function.arguments))));
  if (actions.canAnswer(message, call)) {
    const result = make("textarea", {rows: 2, class: "code", placeholder: "Result of the call", "aria-label": "Result of " + call.function.name});
    body.append(result, make("button", {type: "button", class: "plain", onclick: () => actions.answer(message, call, result.value)},
                             "Send result"));
  }
  return body;
}

const linkButton = (text, onclick, label) => make("button", {type: "button", class: "link", onclick, "aria-label": label}, text);

function editor(view, actions) {
  const box = make("textarea", {class: "edit", rows: 3, value: view.message.content, "aria-label": "Edit the message"});
  const cancel = () => { view.editing = false; view.draw(); };
  box.addEventListener("keydown", event => {
    if (event.key === "Escape") cancel();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) actions.resend(view.message, box.value);
  });
  queueMicrotask(() => box.focus());
  return [box, make("div", {class: "foot"},
    make("button", {type: "button", class: "primary", onclick: () => actions.resend(view.message, box.value)}, "Send again"),
    make("button", {type: "button", class: "plain", onclick: cancel}, "Cancel"))];
}

// The view of a message. `message`: {role, content, reasoning, tool_calls, tokens, state, note}. Call draw() after changes.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.asTokens = false;
    this.editing = false;
    this.open = null;  // whether the reasoning is unfolded; null: the user has not chosen
    this.element = make("article", {class: "message " + message.role,
                                    "aria-label": {user: "You", assistant: "Model", tool: "Result of a tool"}[message.role]});
    this.draw();
  }

  draw() {
    const {message: m, actions} = this;
    this.element.classList.toggle("waiting", m.state === "waiting");
    this.element.classList.toggle("failed", m.state === "failed");
    if (this.editing) return this.element.replaceChildren(...editor(this, actions));
    const parts = [];
    if (m.reasoning && !this.asTokens) {
      const fold = make("details", {class: "fold", open: this.open ?? false},
        make("summary", {onclick: () => { this.open = !fold.open; }}, m.state === "waiting" && !m.content ? "Thinking …" : "Reasoning"),
        make("div", {class: "inner"}, m.reasoning));
      parts.push(fold);
    }
    if (m.role !== "assistant") parts.push(make("div", {class: "text"}, m.content));
    else if (this.asTokens) parts.push(tokensOf(m.tokens));
    else parts.push(make("div", {class: "text"}, ...(m.content ? render(m.content) : [])));
    for (const call of m.tool_calls ?? []) parts.push(callOf(call, m, actions));
    if (m.state === "failed") parts.push(make("p", {class: "bad", role: "alert"}, m.error));
    parts.push(this.foot());
    this.element.replaceChildren(...parts);
  }

  foot() {
    const {message: m, actions} = this;
    const foot = make("div", {class: "foot"});
    if (m.state === "waiting") return foot;
    if (m.role === "user") foot.append(linkButton("Edit", () => { this.editing = true; this.draw(); }, "Edit and send again"));
    if (m.role !== "assistant") return foot;
    if (m.note) foot.append(make("span", {}, m.note));
    if (m.content) foot.append(linkButton("Copy", () => navigator.clipboard?.writeText(m.content), "Copy the answer"));
    foot.append(linkButton("Again", () => actions.again(m), "Answer again"));
    if (m.tokens?.length)
      foot.append(linkButton(this.asTokens ? "Text" : "Tokens", () => { this.asTokens = !this.asTokens; hideTip(); this.draw(); },
                             this.asTokens ? "Show as text" : "Show token probabilities"));
    return foot;
  }
}
