// The view of models that embed or classify texts instead of generating any.
import {post} from "./api.js";
import {byId, make} from "./dom.js";

const dot = (a, b) => a.reduce((total, value, i) => total + value * b[i], 0);
const lines = () => byId("pooling-texts").value.split("\n").map(line => line.trim()).filter(Boolean).slice(0, 32);

// Cosines of all pairs. The shade repeats the number.
function matrixOf(texts, vectors) {
  const norms = vectors.map(vector => Math.sqrt(dot(vector, vector)) || 1);
  const rows = texts.map((text, i) => make("tr", {}, make("th", {scope: "row", title: text}, `${i + 1} ${text}`),
    ...vectors.map((vector, j) => {
      const cosine = dot(vectors[i], vector) / norms[i] / norms[j];
      const cell = make("td", {}, cosine.toFixed(2));
      cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(45 * Math.max(0, cosine))}%, var(--surface))`;
      return cell;
    })));
  const head = make("tr", {}, make("td"), ...texts.map((_, i) => make("th", {scope: "col"}, String(i + 1))));
  return make("table", {class: "matrix"}, make("thead", {}, head), make("tbody", {}, ...rows));
}

async function embed(texts) {
  const {data, usage} = await (await post("v1/embeddings", {input: texts})).json();
  const vectors = data.map(each => each.embedding);
  return [make("p", {class: "quiet"}, `${vectors.length} vectors of ${vectors[0].length} values, ${usage.prompt_tokens} tokens. Cosine similarity:`),
          matrixOf(texts, vectors)];
}

async function classify(texts) {
  const {data} = await (await post("classify", {input: texts})).json();
  const rows = data.map((each, i) => make("tr", {}, make("th", {scope: "row", title: texts[i]}, texts[i]),
    make("td", {}, String(each.label)), make("td", {}, Math.max(...each.probs).toFixed(3))));
  return [make("table", {class: "matrix"}, make("thead", {}, make("tr", {}, ...["Text", "Class", "Probability"].map(title =>
    make("th", {scope: "col"}, title)))), make("tbody", {}, ...rows))];
}

export function startPooling(model) {
  byId("pooling-title").textContent = model.classifies ? "Classes" : "Embeddings";
  byId("tab-chat").textContent = byId("pooling-title").textContent;
  byId("tab-chat").setAttribute("aria-controls", "pooling");
  byId("pooling-about").textContent = model.classifies ? "This model sorts texts into classes." : "This model turns texts into vectors.";
  byId("chat").hidden = true;
  byId("pooling").hidden = false;
  byId("pooling-form").addEventListener("submit", async event => {
    event.preventDefault();
    const texts = lines(), result = byId("pooling-result");
    if (!texts.length) return;
    try {
      result.replaceChildren(...await (model.classifies ? classify(texts) : embed(texts)));
    } catch (error) {
      result.replaceChildren(make("p", {class: "bad", role: "alert"}, error.message));
    }
  });
}
