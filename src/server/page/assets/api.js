// Requests to the server, with the API key of this tab.
import {byId} from "./dom.js";

const KEY = "switchyard-key";
let asking = null;  // the promise of a dialog that is open
let declined = false;  // the user has closed the dialog without a key

function headers(extra) {
  const key = sessionStorage.getItem(KEY);
  return key ? {...extra, Authorization: "Bearer " + key} : {...extra};
}

// Opens the dialog. Resolves to whether a key was given.
export function askForKey(message = "") {
  if (asking) return asking;
  const dialog = byId("key-dialog"), input = byId("key-input");
  byId("key-error").textContent = message;
  input.value = "";
  dialog.showModal();
  asking = new Promise(resolve => {
    byId("key-form").onsubmit = event => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      byId("key-button").hidden = false;
      dialog.close("given");
    };
    byId("key-cancel").onclick = () => dialog.close("");
    dialog.onclose = () => {
      asking = null;
      declined = dialog.returnValue !== "given";
      resolve(!declined);
      dialog.returnValue = "";
    };
  });
  return asking;
}

// An error with the message of the server.
async function errorOf(response) {
  let message = response.status + " " + response.statusText;
  try {
    const body = await response.json();
    message = body.error?.message ?? body.message ?? message;
  } catch { /* the body is not JSON */ }
  return Object.assign(new Error(message), {status: response.status});
}

// As fetch, for a path of this server. Asks for a key if the server requires one; `again`: even if the user has declined.
// Throws unless the response is a success.
export async function request(path, options = {}, again = true) {
  while (true) {
    const response = await fetch(path, {...options, headers: headers(options.headers), cache: "no-store"});
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    const hadKey = sessionStorage.getItem(KEY) !== null;
    const error = await errorOf(response);
    byId("key-button").hidden = false;
    if ((declined && !again) || !await askForKey(hadKey ? "The server did not accept this key." : "")) throw error;
  }
}

export function post(path, body, signal) {
  return request(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});
}

// The data of each event of a stream (text/event-stream). Unlike EventSource, fetch sends the key.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const {value, done} = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
