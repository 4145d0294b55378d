// A small Markdown: paragraphs, headings, lists, quotes, tables, code with a button to copy it, and in
// lines code, bold, emphasis and links. It makes nodes; no text is ever read as HTML.

const kFence = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const kHeading = /^(#{1,6})\s+(.*?)\s*#*$/;
const kRule = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const kTableLine = /^\s*\|?(\s*:?-+:?\s*\|)+\s*:?-*:?\s*$/;
const kInline = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|\*(?=[^\s*])([^*]*[^\s*])\*|\[([^\]\n]*)\]\((https?:[^\s)]+)\)/;

/** Appends `text` with its inline marks to `node`. */
function appendInline(node, text) {
  for (let found; (found = kInline.exec(text)) !== null;) {
    const [whole, ticks, code, bold, emphasis, label, address] = found;
    node.append(text.slice(0, found.index));
    if (ticks) node.append(el("code", {}, code.trim() || code));
    else if (bold) node.append(inlineElement("strong", bold));
    else if (emphasis) node.append(inlineElement("em", emphasis));
    else node.append(el("a", {href: address, rel: "noopener noreferrer", target: "_blank"}, label || address));
    text = text.slice(found.index + whole.length);
  }
  node.append(text);
}

function inlineElement(tag, text) {
  const node = el(tag);
  appendInline(node, text);
  return node;
}

/** Cuts a text into blocks of whole lines: {kind, lines, ...}. */
function blocksOf(text) {
  const blocks = [];
  let open = null; // the fence that is open
  for (const line of text.split("\n")) {
    if (open !== null) {
      if (line.trim().startsWith(open.fence) && line.trim().replaceAll(open.fence[0], "") === "") open = null;
      else open.lines.push(line);
      continue;
    }
    const fence = kFence.exec(line);
    if (fence) {
      open = {kind: "code", fence: fence[1], language: fence[2], lines: []};
      blocks.push(open);
      continue;
    }
    addLine(blocks, line);
  }
  return blocks.filter((block) => block.kind !== "blank");
}

function addLine(blocks, line) {
  const last = blocks.at(-1);
  const kind = kindOf(line, last);
  const joins = ["paragraph", "list", "quote", "table"].includes(kind) && last?.kind === kind;
  if (joins) {
    last.lines.push(line);
  } else if (kind === "table" && last?.kind === "paragraph") {
    const head = last.lines.pop();
    if (last.lines.length === 0) blocks.pop();
    blocks.push({kind, lines: [head, line]});
  } else {
    blocks.push({kind, lines: [line]});
  }
}

function kindOf(line, last) {
  if (line.trim() === "") return "blank";
  if (kTableLine.test(line) && last?.kind === "paragraph" && last.lines.at(-1).includes("|")) return "table";
  if (last?.kind === "table" && line.includes("|")) return "table";
  if (kRule.test(line)) return "rule";
  if (kHeading.test(line)) return "heading";
  if (line.startsWith(">")) return "quote";
  if (kItem.test(line) || (last?.kind === "list" && /^\s{2,}\S/.test(line))) return "list";
  return "paragraph";
}

const kMakers = {
  paragraph: (block) => inlineElement("p", block.lines.join("\n")),
  heading: (block) => {
    const [, marks, text] = kHeading.exec(block.lines[0]);
    return inlineElement("h" + Math.min(marks.length + 2, 6), text);
  },
  rule: () => el("hr"),
  quote: (block) => {
    const node = el("blockquote");
    appendBlocks(node, block.lines.map((line) => line.replace(/^> ?/, "")).join("\n"));
    return node;
  },
  list: (block) => listOf(block.lines),
  table: tableOf,
  code: codeOf,
};

/** A list; lines indented deeper than its first are a list, or text, inside an item. */
function listOf(lines) {
  const [, indent, mark] = kItem.exec(lines[0]) ?? [null, "", "-"];
  const list = el(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) list.start = parseInt(mark, 10);
  const items = [];
  for (const line of lines) {
    const found = kItem.exec(line);
    if (found && found[1].length <= indent.length) items.push({text: found[3], inner: []});
    else items.at(-1)?.inner.push(line);
  }
  for (const item of items) {
    const node = inlineElement("li", item.text);
    if (item.inner.length > 0) {
      if (kItem.test(item.inner[0])) node.append(listOf(item.inner));
      else appendInline(node, "\n" + item.inner.map((line) => line.trim()).join("\n"));
    }
    list.append(node);
  }
  return list;
}

function cellsOf(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function tableOf(block) {
  const [head, , ...rows] = block.lines.map(cellsOf);
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell) => inlineElement("td", cell))));
  const heads = head.map((cell) => {
    const node = inlineElement("th", cell);
    node.scope = "col";
    return node;
  });
  return el("div", {class: "table", tabIndex: 0, role: "region", "aria-label": "Table"},
    el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...body)));
}

function codeOf(block) {
  const text = block.lines.join("\n");
  const copy = button("Copy", async () => {
    copy.textContent = await copyText(text) ? "Copied" : "Not allowed";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return el("div", {class: "code-block"},
    el("div", {class: "code-head"}, el("span", {}, block.language || "text"), copy),
    el("pre", {tabIndex: 0}, el("code", {}, text)));
}

function appendBlocks(node, text) {
  for (const block of blocksOf(text)) node.append(kMakers[block.kind](block));
}

/** Shows `text` in `node`, making anew only the blocks that differ from those shown before. */
function showMarkdown(node, text) {
  const blocks = blocksOf(text);
  const names = blocks.map((block) => block.kind + "\n" + (block.language ?? "") + "\n" + block.lines.join("\n"));
  const shown = node.shownBlocks ?? [];
  let same = 0;
  while (same < names.length && names[same] === shown[same]) ++same;
  while (node.childNodes.length > same) node.lastChild.remove();
  for (const block of blocks.slice(same)) node.append(kMakers[block.kind](block));
  node.shownBlocks = names;
}
