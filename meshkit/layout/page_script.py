"""The style and the script of the page of a plan, which draw.py fills with the figures.

The script knows positions alone: the rank at position p of the grid has the index
``p // stride % size`` along an axis. Ranks are drawn on one canvas, in a box for each node, or for
each index of an axis. Its size follows the window.
"""

STYLE = """
:root {color-scheme: light dark; --page: #fff; --text: #1b1f24; --faint: #6a737d; --line: #c9d1d9;
  --cell: #e4e8ec}
@media (prefers-color-scheme: dark) {
  :root:not(.print) {--page: #14171b; --text: #e6e9ec; --faint: #98a2ad; --line: #454d56;
    --cell: #2c3238}
}
* {box-sizing: border-box}
body {margin: 0; padding: 12px 16px; background: var(--page); color: var(--text);
  font: 14px/1.45 system-ui, sans-serif}
h1 {font-size: 19px; margin: 0; overflow-wrap: anywhere}
h2 {font-size: 15px; margin: 0}
p {margin: 2px 0; color: var(--faint)}
form {display: flex; flex-wrap: wrap; gap: 6px 12px; align-items: center; margin: 10px 0}
form label {white-space: nowrap}
.axis {border-left: 12px solid; padding-left: 5px}
input, select {font: inherit; color: inherit; background: var(--page); max-width: 9em;
  border: 1px solid var(--line); border-radius: 4px; padding: 1px 4px}
main {display: flex; gap: 18px; align-items: flex-start}
#grid {flex: 1; min-width: 0}
canvas {display: block; touch-action: manipulation; cursor: crosshair}
#facts {width: 310px; position: sticky; top: 12px; max-height: 96vh; overflow: auto}
#facts div {margin-top: 7px; padding-left: 8px; border-left: 5px solid transparent}
pre {overflow-x: auto; font: 12px/1.35 ui-monospace, monospace}
@media screen and (max-width: 760px) {
  body {padding-bottom: 44vh}
  #facts {position: fixed; inset: auto 0 0 0; top: auto; width: auto; max-height: 42vh;
    padding: 8px 16px 12px; background: var(--page); border-top: 2px solid var(--line)}
  #facts div {margin-top: 3px}
}
.pages {padding: 0}
.pages pre {padding: 0 16px}
iframe {display: block; width: 100%; height: 100vh; border: 0; border-bottom: 2px solid var(--line)}
@media print {
  form, .hint {display: none}
  main {display: block}
  #facts {position: static; width: auto; max-height: none; overflow: visible}
  canvas {max-width: 100%; max-height: 88vh; width: auto !important; height: auto !important}
  pre {white-space: pre-wrap; font-size: 9px}
}
"""

SCRIPT = """
const {axes, ranks, nodes, racks, batch} = plan, long = axes.filter(axis => axis.size > 1);
const count = axes.reduce((product, axis) => product * axis.size, 1);
const $ = name => document.getElementById(name);
const rankAt = p => ranks ? ranks[p] : p;
const positionOf = new Map(Array.from({length: count}, (_, p) => [rankAt(p), p]));
const indexOf = (p, axis) => Math.floor(p / axis.stride) % axis.size;
const atIndex = (p, axis, i) => p + (i - indexOf(p, axis)) * axis.stride;
const groupOf = (p, axis) => Array.from({length: axis.size}, (_, i) => atIndex(p, axis, i));
const neighbor = (p, axis, shift) =>
  atIndex(p, axis, (indexOf(p, axis) + shift + axis.size) % axis.size);

const few = texts => texts.length < 7 ? texts.join(", ")
  : [...texts.slice(0, 4), "…", texts[texts.length - 1]].join(", ");
const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const onNode = (p, from) => nodes && nodes[p] !== nodes[from] ? ` on node ${nodes[p]}` : "";

// Lines about a position: its node, its group and its links along each axis, its samples.
function factsOf(p) {
  const facts = [];
  if (nodes) {
    const mates = nodes.flatMap((node, q) => node === nodes[p] ? [rankAt(q)] : []);
    const slot = mates.filter(rank => rank < rankAt(p)).length;
    const rack = racks ? `, rack ${racks[nodes[p]]}` : "";
    facts.push([null, `node ${nodes[p]}${rack}, slot ${slot} of ${mates.length}`]);
  }
  for (const axis of long) {
    const group = groupOf(p, axis), before = neighbor(p, axis, -1), after = neighbor(p, axis, 1);
    const lines = [`${axis.name} ${indexOf(p, axis)} of ${axis.size}: ${few(group.map(rankAt))}`];
    if (nodes) {
      const spans = new Set(group.map(q => nodes[q]));
      const inRacks = racks && new Set([...spans].map(node => racks[node])).size;
      lines.push(spans.size === 1 ? "inside its node"
        : `over ${spans.size} nodes` + (racks ? ` in ${plural(inRacks, "rack")}` : ""));
    }
    lines.push(`before ${rankAt(before)}${onNode(before, p)}, `
      + `after ${rankAt(after)}${onNode(after, p)}`);
    facts.push([axis, lines.join("; ")]);
  }
  if (batch) {
    const data = axes.reduce((sum, axis) => sum + indexOf(p, axis) * axis.data, 0);
    const samples = [];
    for (let s = data * batch.micro; s < batch.global; s += batch.dp * batch.micro)
      samples.push(batch.micro > 1 ? `${s}-${s + batch.micro - 1}` : `${s}`);
    const batches = samples.length === 1 ? "1 micro batch" : `${samples.length} micro batches`;
    facts.push([null, `${batches} of ${plural(batch.micro, "sample")} in step 0: ${few(samples)}`]);
  }
  return facts;
}

// The boxes of the grid: positions by node, or by the index along an axis; then by rack.
function boxesBy(name) {
  const axis = axes.find(axis => axis.name === name), boxes = new Map();
  for (let p = 0; p < count; p++) {
    const key = axis ? indexOf(p, axis) : nodes ? nodes[p] : 0;
    if (!boxes.has(key)) boxes.set(key, []);
    boxes.get(key).push(p);
  }
  const label = axis ? axis.name + "=" : nodes ? "node " : "";
  const inner = [...long].reverse().find(other => other !== axis);
  const rackOf = node => axis || !racks ? null : racks[node];
  return [...boxes].sort(([a], [b]) => rackOf(a) - rackOf(b) || a - b).map(([key, members]) => ({
    label: label && label + key, rack: rackOf(key), members,
    columns: inner ? inner.size : 1,
  }));
}

// Give each box its place for one size of the cells; return the height of all.
const HEAD = 16, SIZES = [44, 36, 30, 26, 22, 18, 15, 12, 10, 8, 7, 6];
function place(boxes, cell, width) {
  const head = cell >= 12 || boxes.length <= 64 ? HEAD : 0, gap = cell >= 10 ? 6 : 3;
  const most = Math.max(1, Math.floor((width - gap) / cell));
  let x = 0, y = 0, row = 0, rack = null;
  for (const box of boxes) {
    if (box.rack !== rack && box.rack !== null) {
      y += row + HEAD + (rack === null ? 0 : gap);
      [x, row, rack] = [0, 0, box.rack];
    }
    const size = box.members.length;
    let across = Math.min(box.columns, size);
    while (across > most) across = Math.ceil(across / 2);
    while (size > 4 * across ** 2 && 2 * across <= most) across *= 2;  // not a narrow tower
    const w = across * cell + gap, h = head + gap + Math.ceil(size / across) * cell;
    const taken = head ? Math.max(w, box.label.length * 7.5) : w;
    if (x > 0 && x + taken > width) [x, y, row] = [0, y + row + gap / 2, 0];
    Object.assign(box, {x, y, w, h, across, left: x + gap / 2, top: y + head + gap / 2, head});
    x += taken + gap / 2;
    row = Math.max(row, h);
  }
  return y + row;
}

const canvas = $("canvas"), context = canvas.getContext("2d");
let boxes = [], cell = 10, boxOf = [], chosen = 0, isFixed = false, base = null;
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name);
const corner = p => {
  const [box, i] = boxOf[p];
  return [box.left + i % box.across * cell, box.top + Math.floor(i / box.across) * cell];
};

function layOut() {
  boxes = boxesBy($("by").value);
  const width = $("grid").clientWidth, digits = String(count - 1).length;
  const fits = size => place(boxes, size, width) <= Math.max(320, innerHeight * 0.75);
  cell = SIZES.find(fits) || SIZES[SIZES.length - 1];
  const height = place(boxes, cell, width);
  boxOf = new Array(count);
  for (const box of boxes) box.members.forEach((p, i) => { boxOf[p] = [box, i]; });
  const scale = Math.min(devicePixelRatio || 1, Math.sqrt(16e6 / width / height), 16000 / height);
  for (const surface of [canvas, base = document.createElement("canvas")]) {
    surface.width = Math.ceil(width * scale);
    surface.height = Math.ceil(height * scale);
    surface.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  drawBase(base.getContext("2d"), cell >= digits * 7 + 3);
  draw();
}

function write(pen, text, x, y, style) {
  pen.fillStyle = style;
  pen.fillText(text, x, y);
}

function drawBase(pen, isNumbered) {
  const [faint, line, fill, text] = ["--faint", "--line", "--cell", "--text"].map(color);
  pen.font = "11px system-ui, sans-serif";
  pen.strokeStyle = line;
  let rack = null;
  for (const box of boxes) {
    if (box.rack !== rack) write(pen, `rack ${rack = box.rack}`, 0, box.y - 4, faint);
    if (box.head) write(pen, box.label, box.x + 2, box.y + HEAD - 4, faint);
    pen.strokeRect(box.x + 0.5, box.y + box.head + 0.5, box.w - 1, box.h - box.head - 1);
    pen.fillStyle = fill;
    for (const p of box.members) pen.fillRect(...corner(p), cell - 1, cell - 1);
    if (isNumbered) for (const p of box.members) number(pen, p, text);
  }
  base.isNumbered = isNumbered;
}

function number(pen, p, style) {
  const [x, y] = corner(p);
  pen.textAlign = "center";
  write(pen, rankAt(p), x + (cell - 1) / 2, y + cell / 2 + 3.5, style);
  pen.textAlign = "left";
}

const switchOf = axis => $("form").elements["axis-" + axis.name];
function textOn(fill) {
  const [red, green, blue] = fill.match(/\\w\\w/g).map(pair => parseInt(pair, 16));
  return 2 * red + 7 * green + blue < 1100 ? "#fff" : "#000";
}

const lit = () => long.filter(axis => switchOf(axis).checked);

function draw() {
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.drawImage(base, 0, 0);
  const scale = canvas.width / parseFloat(canvas.style.width);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = "11px system-ui, sans-serif";
  for (const axis of lit()) {
    for (const p of groupOf(chosen, axis)) {
      context.fillStyle = axis.color;
      context.fillRect(...corner(p), cell - 1, cell - 1);
      if (base.isNumbered) number(context, p, textOn(axis.color));
    }
  }
  for (const axis of lit()) link(axis);
  const [x, y] = corner(chosen), text = color("--text");
  context.fillStyle = text;
  context.fillRect(x, y, cell - 1, cell - 1);
  if (base.isNumbered) number(context, chosen, color("--page"));
  const box = boxOf[chosen][0];
  context.strokeStyle = text;
  context.lineWidth = 1.5;
  context.setLineDash([]);
  context.strokeRect(box.x + 0.5, box.y + box.head + 0.5, box.w - 1, box.h - box.head - 1);
}

const dashOf = p => nodes && nodes[p] !== nodes[chosen] ? [5, 4] : [];

// Lines to the neighbors along an axis: dashed if they leave the node.
function link(axis) {
  const center = p => corner(p).map(n => n + cell / 2);
  for (const p of new Set([neighbor(chosen, axis, -1), neighbor(chosen, axis, 1)])) {
    const [[x, y], [u, v]] = [center(chosen), center(p)];
    const bend = Math.min(24, Math.hypot(u - x, v - y) / 4 + cell / 2);
    context.beginPath();
    context.moveTo(x, y);
    context.quadraticCurveTo((x + u) / 2, (y + v) / 2 - bend, u, v);
    for (const [style, width, dash] of [[color("--page"), 4, []], [axis.color, 2, dashOf(p)]]) {
      context.setLineDash(dash);
      context.strokeStyle = style;
      context.lineWidth = width;
      context.stroke();
    }
  }
}

function choose(p) {
  chosen = p;
  const coordinate = axes.map(axis => `${axis.name}=${indexOf(p, axis)}`).join(" ");
  const title = document.createElement("h2");
  title.textContent = `rank ${rankAt(p)}: ${coordinate}`;
  $("facts").replaceChildren(title, ...factsOf(p).map(([axis, text]) => {
    const line = document.createElement("div");
    line.textContent = text;
    if (axis) line.style.borderColor = axis.color;
    return line;
  }));
  if (document.activeElement !== $("rank")) $("rank").value = rankAt(p);
  draw();
}

function positionAt(event) {
  const at = canvas.getBoundingClientRect();
  const x = event.clientX - at.left, y = event.clientY - at.top;
  for (const box of boxes) {
    const column = Math.floor((x - box.left) / cell), row = Math.floor((y - box.top) / cell);
    const i = row * box.across + column;
    if (column >= 0 && column < box.across && row >= 0 && i < box.members.length)
      return box.members[i];
  }
  return null;
}

let awaited = null;  // the position to show in the next frame
canvas.onpointermove = event => {
  const p = positionAt(event);
  if (isFixed || p === null || p === chosen || event.pointerType === "touch") return;
  if (awaited === null) requestAnimationFrame(() => { choose(awaited); awaited = null; });
  awaited = p;
};
canvas.onclick = event => {
  const p = positionAt(event);
  if (p === null) return;
  isFixed = !(isFixed && p === chosen) && event.pointerType !== "touch";
  choose(p);
};
$("rank").oninput = event => {
  const p = positionOf.get(Number(event.target.value));
  if (p !== undefined && event.target.value) { isFixed = true; choose(p); }
};
$("by").onchange = layOut;
for (const axis of long) switchOf(axis).onchange = draw;
$("form").onsubmit = () => false;
let width = innerWidth;
onresize = () => { if (innerWidth !== width) { width = innerWidth; layOut(); } };
matchMedia("(prefers-color-scheme: dark)").onchange = layOut;
function inPrint(isPrint) {
  document.documentElement.classList.toggle("print", isPrint);
  layOut();
}
onbeforeprint = () => inPrint(true);
onafterprint = () => inPrint(false);
layOut();
choose(0);
performance.mark("drawn");
"""
