#include "server/openapi/openapi.h"

namespace switchyard::openapi {
namespace {

constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Switchyard API</title>
<style>
  body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
  h2 { border-bottom: 1px solid #8888; margin-top: 2rem; }
  summary { cursor: pointer; padding: .25rem 0; }
  code, .method { font-family: ui-monospace, monospace; }
  .method { display: inline-block; min-width: 4.5rem; font-weight: bold; }
  table { border-collapse: collapse; margin: .5rem 0 1rem 1rem; }
  td, th { border-bottom: 1px solid #8884; padding: .15rem .6rem; text-align: left; vertical-align: top; }
  .refused { opacity: .6; }
</style>
</head>
<body>
<h1>Switchyard API</h1>
<p id="about">The operations are in <a href="openapi.json">openapi.json</a>.</p>
<main id="operations"></main>
<script>
"use strict";
const make = (tag, text, name) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
};
const typeOf = schema => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(", ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array" && schema.items) return "list of " + typeOf(schema.items);
  return schema.type ? [].concat(schema.type).join(" or ") : "any";
};
const boundsOf = schema => {
  const parts = [];
  const bounds = {minimum: "\u2265", exclusiveMinimum: ">", maximum: "\u2264", exclusiveMaximum: "<"};
  for (const [key, sign] of Object.entries(bounds)) if (key in schema) parts.push(sign + " " + schema[key]);
  if ("default" in schema) parts.push("default " + JSON.stringify(schema.default));
  if (schema.description) parts.push(schema.description);
  return parts.join(", ");
};
const fieldsOf = schema => {
  const table = make("table");
  const head = table.appendChild(make("tr"));
  for (const title of ["field", "type", ""]) head.appendChild(make("th", title));
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = table.appendChild(make("tr", undefined, field["x-refused"] ? "refused" : ""));
    row.appendChild(make("td")).appendChild(make("code", name));
    row.appendChild(make("td", field["x-refused"] ? "refused" : typeOf(field)));
    row.appendChild(make("td", boundsOf(field)));
  }
  return table;
};
const show = api => {
  const sections = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!sections.has(tag)) {
        const section = document.getElementById("operations").appendChild(make("section"));
        section.appendChild(make("h2", tag));
        sections.set(tag, section);
      }
      const details = sections.get(tag).appendChild(make("details"));
      const summary = details.appendChild(make("summary"));
      summary.appendChild(make("span", method.toUpperCase(), "method"));
      summary.appendChild(make("code", path));
      summary.appendChild(document.createTextNode(" \u2013 " + operation.summary));
      if (operation.description) details.appendChild(make("p", operation.description));
      const body = operation.requestBody;
      if (!body) continue;
      const name = body.content["application/json"].schema.$ref.split("/").pop();
      details.appendChild(fieldsOf(api.components.schemas[name]));
    }
  }
  document.getElementById("about").append(" Version " + api.info.version + ". " + api.info.description);
};
fetch("openapi.json").then(response => response.json()).then(show)
  .catch(error => { document.getElementById("operations").textContent = String(error); });
</script>
</body>
</html>
)html";

}  // namespace

std::string_view DocsPage() { return kPage; }

}  // namespace switchyard::openapi
