// The conversation: settings, streaming, stop, edit and send again.
import {events, post} from "./api.js";
import {byId, make} from "./dom.js";
import {MessageView} from "./message.js";

const DRAW_MS = 60;  // least time between two drawings of an answer
const SETTINGS = "switchyard-settings";
const views = [];
let abort = null;  // of the answer in progress

const form = () => byId("settings");

function saveSettings() {
  const values = {};
  for (const field of form().elements)
    if (field.name) values[field.name] = field.type === "checkbox" ? field.checked : field.value;
  sessionStorage.setItem(SETTINGS, JSON.stringify(values));
}

function loadSettings() {
  const values = JSON.parse(sessionStorage.getItem(SETTINGS) ?? "{}");
  for (const field of form().elements) {
    if (!(field.name in values)) continue;
    if (field.type === "checkbox") field.checked = values[field.name];
    else field.value = values[field.name];
  }
}

// The fields of the request that the settings give. Throws if the tools are not JSON.
function fieldsOf() {
  const value = name => form().elements[name].value.trim();
  const fields = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "max_tokens", "seed"])
    if (value(name) !== "") fields[name] = Number(value(name));
  if (value("thinking")) fields.chat_template_kwargs = {enable_thinking: value("thinking") === "true"};
  const stop = value("stop").split("\n").filter(Boolean);
  if (stop.length) fields.stop = stop;
  if (form().elements.logprobs.checked) Object.assign(fields, {logprobs: true, top_logprobs: 5});
  if (value("tools")) {
    try {
      fields.tools = JSON.parse(value("tools"));
    } catch (error) {
      throw new Error("Tools: " + error.message);
    }
  }
  return fields;
}

function messagesOf() {
  const system = form().elements.system.value.trim();
  const list = system ? [{role: "system", content: system}] : [];
  for (const {message: m} of views) {
    if (m.state === "failed" || m.state === "waiting") continue;
    const sent = {role: m.role, content: m.content};
    if (m.tool_calls?.length) sent.tool_calls = m.tool_calls;
    if (m.tool_call_id) sent.tool_call_id = m.tool_call_id;
    list.push(sent);
  }
  return list;
}

function add(message) {
  byId("welcome").hidden = true;
  const view = new MessageView(message, actions);
  views.push(view);
  byId("messages").append(view.element);
  scrollDown();
  return view;
}

function cutAt(index) {
  abort?.abort();
  for (const view of views.splice(index)) view.element.remove();
  byId("welcome").hidden = views.length > 0;
}

function scrollDown() {
  const box = byId("messages");
  box.scrollTop = box.scrollHeight;
}

const isAtEnd = box => box.scrollHeight - box.scrollTop - box.clientHeight < 48;

// Adds the changes of one event to the message.
function take(message, choice) {
  const delta = choice.delta ?? {};
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = message.tool_calls[part.index] ??= {id: part.id, type: "function", function: {name: "", arguments: ""}};
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
  message.tokens.push(...choice.logprobs?.content ?? []);
}

function noteOf(usage, started, first, finish, stopped) {
  // Short outputs may arrive at once.
  const all = (performance.now() - started) / 1000, later = (performance.now() - first) / 1000;
  const count = usage?.completion_tokens;
  const parts = [];
  if (count) parts.push(count + (count === 1 ? " token" : " tokens"));
  if (first) parts.push("first after " + Math.round(first - started) + " ms");
  if (count > 1) parts.push((later > 0.1 ? (count - 1) / later : count / all).toFixed(0) + " tokens/s");
  if (stopped) parts.push("stopped");
  else if (finish === "length") parts.push("cut at the limit");
  return parts.join(" · ");
}

async function answer() {
  const message = {role: "assistant", content: "", reasoning: "", tool_calls: [], tokens: [], state: "waiting"};
  const history = messagesOf();
  const view = add(message);
  const own = abort = new AbortController();
  const started = performance.now();
  let first = 0, usage = null, finish = "", drawn = 0, timer = 0, stopped = false;
  const draw = () => {
    const box = byId("messages"), follows = isAtEnd(box);
    timer = 0;
    drawn = performance.now();
    view.draw();
    if (follows) scrollDown();
  };
  busy(true);
  try {
    const body = {messages: history, stream: true, stream_options: {include_usage: true}, ...fieldsOf()};
    for await (const data of events(await post("v1/chat/completions", body, own.signal))) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const choice = event.choices?.[0];
      if (!choice) continue;
      take(message, choice);
      if (!first && (message.content || message.reasoning || message.tool_calls.length)) first = performance.now();
      finish = choice.finish_reason ?? finish;
      timer ||= setTimeout(draw, Math.max(0, drawn + DRAW_MS - performance.now()));
    }
    message.state = "done";
  } catch (error) {
    stopped = own.signal.aborted;
    message.state = stopped ? "done" : "failed";
    message.error = error.message;
  }
  clearTimeout(timer);
  usage ??= message.tokens.length ? {completion_tokens: message.tokens.length} : null;
  message.note = noteOf(usage, started, first, finish, stopped);
  draw();
  if (abort === own) {
    abort = null;
    busy(false);
  }
}

function busy(on) {
  const box = byId("prompt");
  byId("send").hidden = on;
  byId("stop").hidden = !on;
  byId("messages").setAttribute("aria-busy", String(on));
  if (!on && matchMedia("(hover: hover)").matches) box.focus({preventScroll: true});
}

const actions = {
  resend(message, text) {
    if (!text.trim()) return;
    cutAt(views.findIndex(view => view.message === message));
    add({role: "user", content: text});
    answer();
  },
  again(message) {
    cutAt(views.findIndex(view => view.message === message));
    answer();
  },
  // Whether the result of the call is missing.
  canAnswer(message, call) {
    if (message.state === "waiting") return false;
    const index = views.findIndex(view => view.message === message);
    return !views.slice(index + 1).some(view => view.message.role !== "tool" || view.message.tool_call_id === call.id);
  },
  answer(message, call, text) {
    add({role: "tool", content: text, tool_call_id: call.id});
    const asked = views.find(view => view.message === message);
    asked.draw();
    if (message.tool_calls.every(each => !actions.canAnswer(message, each))) answer();
  },
};

function fit(box) {
  box.style.height = "auto";
  box.style.height = box.scrollHeight + 2 + "px";
}

function send() {
  const box = byId("prompt"), text = box.value;
  if (!text.trim() || abort) return;
  box.value = "";
  fit(box);
  add({role: "user", content: text});
  answer();
}

// `suggestions`: first messages to choose from.
export function startChat(suggestions) {
  const box = byId("prompt");
  loadSettings();
  form().addEventListener("input", saveSettings);
  form().addEventListener("submit", event => event.preventDefault());
  byId("settings-reset").addEventListener("click", () => { form().reset(); saveSettings(); });
  byId("settings-button").addEventListener("click", () => {
    form().hidden = !form().hidden;
    byId("settings-button").setAttribute("aria-expanded", String(!form().hidden));
  });
  byId("new-chat").addEventListener("click", () => { cutAt(0); box.focus(); });
  byId("stop").addEventListener("click", () => abort?.abort());
  byId("composer").addEventListener("submit", event => { event.preventDefault(); send(); });
  box.addEventListener("input", () => fit(box));
  box.addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape" && abort && !byId("key-dialog").open) abort.abort();
  });
  if (suggestions.length)
    byId("welcome").append(make("div", {class: "suggestions"}, ...suggestions.map(text =>
      make("button", {type: "button", onclick: () => { box.value = text; send(); }}, text))));
}
