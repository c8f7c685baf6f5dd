// Renders Markdown as elements. Only createElement and text nodes: no text of a model becomes HTML.
import {make} from "./dom.js";

const INLINE = /(`+)([^`](?:.*?[^`])??)\1(?!`)|\*\*(?=\S)(.+?)\*\*|__(?=\S)(.+?)__(?!\w)|\*(?=[^\s*])(.+?)\*|(?<!\w)_(?=[^\s_])(.+?)_(?!\w)|~~(?=\S)(.+?)~~|\[([^\]]+)\]\((https?:\/\/[^\s()]+)\)|(https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"])/s;

function inline(text, depth = 0) {
  const parts = [];
  while (text) {
    const found = depth < 6 ? INLINE.exec(text) : null;
    if (!found) {
      parts.push(text);
      break;
    }
    if (found.index) parts.push(text.slice(0, found.index));
    const [all, , code, strong, strong2, em, em2, struck, label, url, bare] = found;
    const wrap = (tag, inner) => make(tag, {}, ...inline(inner, depth + 1));
    const link = (href, children) => make("a", {href, target: "_blank", rel: "noopener noreferrer"}, ...children);
    if (code !== undefined) parts.push(make("code", {}, code));
    else if (strong ?? strong2) parts.push(wrap("strong", strong ?? strong2));
    else if (em ?? em2) parts.push(wrap("em", em ?? em2));
    else if (struck) parts.push(wrap("s", struck));
    else if (label) parts.push(link(url, inline(label, depth + 1)));
    else parts.push(link(bare, [bare]));
    text = text.slice(found.index + all.length);
  }
  return parts;
}

const withBreaks = lines => lines.flatMap((line, i) => {
  const parts = inline(line.trim());
  return i + 1 < lines.length ? [...parts, make("br")] : parts;
});

const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const cells = line => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll("\\|", "|"));
const isRule = line => /^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line);
const isTable = (line, next) => line.includes("|") && next !== undefined && /^[\s|:-]*-[\s|:-]*$/.test(next) && next.includes("|");
const begins = (line, next) => /^ {0,3}(```|~~~|#{1,6}\s|>)/.test(line) || ITEM.test(line) || isRule(line) || isTable(line, next);

function list(lines, at, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const element = make(ordered ? "ol" : "ul", ordered ? {start: Number.parseInt(marker, 10)} : {});
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length < indent.length || /\d/.test(found[2]) !== ordered) break;
    const inner = [found[3]];
    const width = found[1].length + found[2].length + 1;
    for (++at; at < lines.length; ++at) {
      const line = lines[at];
      const indented = line.length - line.trimStart().length;
      if (line.trim() === "") {
        const next = lines[at + 1];
        if (next === undefined || next.length - next.trimStart().length <= indent.length) break;
        inner.push("");
      } else if (indented > indent.length) inner.push(line.slice(Math.min(indented, width)));
      else if (begins(line, lines[at + 1])) break;
      else inner.push(line);
    }
    const blocks = render(inner.join("\n"), depth + 1);
    element.append(make("li", {}, ...(blocks.length === 1 && blocks[0].tagName === "P" ? blocks[0].childNodes : blocks)));
    while (at < lines.length && lines[at].trim() === "" && ITEM.test(lines[at + 1] ?? "")) ++at;
  }
  return [element, at];
}

// Returns the block elements of the text.
export function render(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    if (line.trim() === "") {
      ++at;
    } else if (fence) {
      const code = [];
      for (++at; at < lines.length && !lines[at].trimStart().startsWith(fence[1]); ++at) code.push(lines[at]);
      ++at;
      blocks.push(make("pre", {tabIndex: 0}, make("code", {}, code.join("\n"))));
    } else if (isRule(line)) {
      blocks.push(make("hr"));
      ++at;
    } else if (/^ {0,3}#{1,6}\s/.test(line)) {
      const [, marks, title] = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(line) ?? [, "#", line.trim()];
      blocks.push(make("h" + Math.min(5, marks.length + 2), {}, ...inline(title)));
      ++at;
    } else if (/^ {0,3}>/.test(line) && depth < 8) {
      const quoted = [];
      for (; at < lines.length && /^ {0,3}>/.test(lines[at]); ++at) quoted.push(lines[at].replace(/^ {0,3}> ?/, ""));
      blocks.push(make("blockquote", {}, ...render(quoted.join("\n"), depth + 1)));
    } else if (ITEM.test(line) && depth < 8) {
      const [element, next] = list(lines, at, depth);
      blocks.push(element);
      at = next;
    } else if (isTable(line, lines[at + 1])) {
      const head = make("tr", {}, ...cells(line).map(cell => make("th", {scope: "col"}, ...inline(cell))));
      const body = make("tbody");
      for (at += 2; at < lines.length && lines[at].includes("|"); ++at)
        body.append(make("tr", {}, ...cells(lines[at]).map(cell => make("td", {}, ...inline(cell)))));
      blocks.push(make("table", {}, make("thead", {}, head), body));
    } else {
      const paragraph = [line];
      for (++at; at < lines.length && lines[at].trim() !== "" && !begins(lines[at], lines[at + 1]); ++at) paragraph.push(lines[at]);
      blocks.push(make("p", {}, ...withBreaks(paragraph)));
    }
  }
  return blocks;
}
