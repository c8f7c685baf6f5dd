// Starts the page.
import {askForKey} from "./api.js";
import {startChat} from "./chat.js";
import {byId, choiceOf, setText} from "./dom.js";
import {startLive} from "./live.js";
import {startPooling} from "./pooling.js";

const STATES = {ready: "ready", starting: "starting", restarting: "ranks restart", draining: "shutting down", lost: "ranks lost",
                offline: "no connection"};
let known = "";  // the model for which the page is set up

function showState(state) {
  byId("state").dataset.state = state;
  setText("state", STATES[state] ?? state);
}

function onSnapshot({state, model, version}) {
  showState(state);
  const facts = [model.architecture, `context ${model.context_length.toLocaleString("en")}`, `Switchyard ${version}`];
  setText("model-name", model.name);
  setText("model-facts", facts.join(" · "));
  if (known) return;
  known = model.name;
  document.title = model.name + " · Switchyard";
  if (!model.generates) startPooling(model);
  byId("live").classList.toggle("pooled", !model.generates);
}

sessionStorage.getItem("switchyard-key") && (byId("key-button").hidden = false);
byId("key-button").addEventListener("click", () => askForKey());
choiceOf([byId("tab-chat"), byId("tab-live")], "aria-selected", button => {
  document.querySelector(".views").dataset.view = button.id === "tab-chat" ? "chat" : "live";
});
startChat(["What is a mixture of experts?", "Who are you?", "What is expert parallelism?"]);
startLive(onSnapshot, showState);
