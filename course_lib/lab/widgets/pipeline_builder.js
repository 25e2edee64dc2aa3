// The view of the pipeline game. It draws what the kernel tells it (pipeline_status.py) and sends back what was
// chosen; no rule of the game is here. Parts with `data-key` keep the focus when the view is drawn anew.

const SVG = "http://www.w3.org/2000/svg";
const AXIS = 34; // pixels under the rows
const KINDS = { F: "forward", B: "whole backward", I: "backward, input", W: "backward, weights" };

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "text", "line", "polyline", "title"].includes(tag);
  const node = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null && child !== ""));
  return node;
}

const look = (block) => `pb-${block.kind}${block.further ? " pb-further" : ""}`;
const number = (x) => String(Math.round(x * 1000) / 1000);

// Arrow keys go to the nearest part that can have the focus, in that direction.
function arrows(event) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!way || !event.target.dataset.key) return;
  event.preventDefault();
  const middle = (node) => {
    const box = node.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  const [x, y] = middle(event.target);
  let best, least = Infinity;
  for (const node of event.currentTarget.querySelectorAll("[data-key]")) {
    const [dx, dy] = middle(node).map((at, i) => at - [x, y][i]);
    const along = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    if (along > 3 && aside <= (way[0] ? 12 : Infinity) && along + 2 * aside < least) {
      [best, least] = [node, along + 2 * aside];
    }
  }
  if (best) best.focus();
}

function render({ model, el }) {
  const send = (message) => model.send(message);
  const shown = { rank: 0, path: false, ghost: null, url: null };
  const say = (text, kind) => {
    message.textContent = text || "\u00a0";
    message.className = `pb-message pb-${kind || "quiet"}`;
  };
  const button = (words, act, more = {}) => make("button", { type: "button", onclick: act, ...more }, words);

  // ---- what stays: controls, the message, the text
  const level = make("select", { "aria-label": "level", onchange: () => send({ do: "level", level: level.selectedIndex }) },
    ...model.get("levels").map((title) => make("option", {}, title)));
  const path = make("input", { type: "checkbox", onchange: () => { shown.path = path.checked; draw(); } });
  const message = make("div", { role: "status", "aria-live": "polite" });
  const run = button("Run on real ranks", () => send({ do: "run" }), { class: "pb-main" });
  const text = make("textarea", { rows: 6, spellcheck: "false", "aria-label": "the schedule as text" });
  const [head, board, facts, moves, ran] = Array.from({ length: 5 }, () => make("div"));
  board.addEventListener("keydown", arrows);
  moves.addEventListener("keydown", arrows);
  const rules = model.get("rules").map((rule) => button(rule, () => send({ do: "finish", rule })));
  const root = make("div", { class: "pb", "data-lm-suppress-shortcuts": "true" },
    head, board, message, facts,
    make("div", { class: "pb-bar" },
      button("Undo", () => send({ do: "undo" })), button("Start again", () => send({ do: "restart" })),
      make("span", { class: "pb-label" }, "Let a rule finish:"), ...rules,
      make("label", { class: "pb-label" }, path, " critical path"), make("span", { class: "pb-space" }), run),
    ran,
    make("div", { class: "pb-lower" }, moves,
      make("div", {}, make("div", { class: "pb-bar" }, make("b", {}, "As text"),
        make("span", { class: "pb-label" }, "keep it, share it, edit it"), make("span", { class: "pb-space" }),
        button("Load this text", () => send({ do: "load", text: text.value }))), text)));
  el.append(root);

  // ---- what is drawn anew after each move
  function drawHead(s) {
    level.selectedIndex = model.get("level");
    head.replaceChildren(
      make("div", { class: "pb-bar" }, level, make("span", { class: "pb-task" }, s.task)),
      make("div", { class: "pb-label" }, s.conditions));
  }

  function drawBoard(s) {
    const high = Math.max(46, 26 * Math.max(...s.rows.map((row) => row.stages.length)) + 10);
    const labels = s.rows.map((row) => make("div", { class: "pb-rank", style: `height:${high}px` },
      make("b", {}, `rank ${row.rank}`), memory(s, row)));
    const next = s.rows.map((row) => make("div", { class: "pb-next", style: `height:${high}px` },
      ...row.stages.map((stage) => make("div", {}, ...row.next.filter((c) => c.stage === stage).map((c) => chip(row, c))))));
    board.className = "pb-board";
    const track = make("div", { class: "pb-track" });
    board.replaceChildren(make("div", {}, ...labels), track,
      make("div", {}, ...next, make("div", { class: "pb-label pb-hint" }, s.full ? "" : "can run now")));
    track.append(drawing(s, high, track.clientWidth || 560));
  }

  function memory(s, row) {
    const words = `holds ${row.held} of ${s.cap || "any number of"} activations; ${row.peak} at most so far`;
    const box = make("div", { class: "pb-memory", title: words, role: "img", "aria-label": words });
    for (let i = 0; i < Math.min(s.cap || row.peak, 12); i++) {
      box.append(make("i", { class: i < row.held ? "pb-held" : i < row.peak ? "pb-peak" : "" }));
    }
    box.append(`${row.held}${s.cap ? `/${s.cap}` : ""}`);
    return box;
  }

  function chip(row, block) {
    const ghost = (on) => () => {
      for (const old of board.querySelectorAll(".pb-ghost")) old.remove();
      if (on) board.querySelector("svg").append(shown.ghost(row.rank, block));
    };
    return button(block.name, () => send({ do: "play", rank: row.rank, action: block.name }), {
      class: `pb-chip ${look(block)}`, "data-key": `next ${row.rank} ${block.stage}${block.kind}`,
      title: `${KINDS[block.kind]} of micro-batch ${block.micro_batch} on stage ${block.stage}: would run from ${number(block.start)} to ${number(block.end)}`,
      onmouseenter: ghost(true), onfocus: ghost(true), onmouseleave: ghost(false), onblur: ghost(false) });
  }

  function drawing(s, high, wide) {
    const full = s.rows.length * high, x = (t) => 1 + ((wide - 14) * t) / (s.end || 1);
    const svg = make("svg", { width: wide, height: full + AXIS, role: "group", "aria-label": "the schedule" });
    const step = [0.5, 1, 2, 5, 10, 20, 50, 100].find((size) => (s.end || 1) / size <= wide / 38) || 200;
    for (let t = 0; t <= s.end + 1e-9; t += step) {
      svg.append(make("line", { x1: x(t), x2: x(t), y1: 0, y2: full + 3, class: "pb-grid" }),
        make("text", { x: x(t), y: full + 15, class: "pb-tick" }, number(t)));
    }
    const box = (r, b, name) => make("rect", { x: x(b.start) + 0.5, y: r * high + 5, rx: 3, height: high - 10,
      width: Math.max(1, x(b.end) - x(b.start) - 1), class: name });
    const wordsIn = (r, b, words, name) => make("text", { x: x((b.start + b.end) / 2), y: r * high + high / 2 + 4, class: name }, words);
    s.rows.forEach((row, r) => {
      for (const gap of row.gaps) {
        const why = () => say(gap.reason, "gap");
        const part = make("g", { class: "pb-gap", tabindex: -1, role: "button", "aria-label": gap.reason,
          "data-key": `gap ${r} ${gap.start}`, onclick: why, onfocus: why, onmouseenter: why }, box(r, gap, "pb-idle"));
        if (x(gap.end) - x(gap.start) > 34) part.append(wordsIn(r, gap, "why?", "pb-why"));
        svg.append(part);
      }
      for (const block of row.blocks) {
        const room = x(block.end) - x(block.start);
        const back = () => send({ do: "take_back", action: block.name });
        const words = `${block.name}: ${KINDS[block.kind]}, from ${number(block.start)} to ${number(block.end)}. Click: take it back, and all that needs it`;
        const name = `${look(block)}${shown.path && block.critical ? " pb-critical" : ""}`;
        const part = make("g", { class: "pb-block", tabindex: -1, role: "button", "aria-label": words,
          "data-key": `block ${block.name}`, onclick: back,
          onkeydown: (e) => { if (["Enter", " ", "Delete", "Backspace"].includes(e.key)) { e.preventDefault(); back(); } } },
          make("title", {}, words), box(r, block, name));
        if (room > 11) part.append(wordsIn(r, block, room > 30 ? block.name : room > 22 ? block.kind + block.micro_batch : block.micro_batch, `pb-word ${look(block)}`));
        svg.append(part);
      }
    });
    const at = x(s.par);
    svg.append(make("line", { x1: at, x2: at, y1: 0, y2: full + 4, class: "pb-par" }),
      make("text", { x: Math.min(at, wide - 26), y: full + 30, class: "pb-parword" }, `par ${number(s.par)}`));
    if (shown.path) {
      const ends = s.rows.flatMap((row, r) => row.blocks.filter((b) => b.critical).map((b) => [b, r * high + high / 2]));
      ends.sort((a, b) => a[0].start - b[0].start || a[0].end - b[0].end);
      const points = ends.flatMap(([b, y]) => [`${x(b.start) + 3},${y + 12}`, `${x(b.end) - 3},${y + 12}`]);
      svg.append(make("polyline", { points: points.join(" "), class: "pb-way" }));
    }
    const first = svg.querySelector("[data-key]");
    if (first) first.setAttribute("tabindex", 0);
    shown.ghost = (r, block) => make("g", { class: "pb-ghost" }, box(r, block, look(block)), wordsIn(r, block, block.kind + block.micro_batch, "pb-word"));
    return svg;
  }

  function drawFacts(s) {
    facts.className = "pb-facts";
    facts.replaceChildren(
      ...s.facts.map((fact) => make("div", {}, make("span", {}, fact.name), make("b", {}, fact.value), make("span", {}, fact.note))));
    if (s.compared) facts.append(make("div", { class: "pb-wide" }, make("span", {}, "known schedules here"), s.compared));
  }

  function drawMoves(s) {
    shown.rank = Math.min(shown.rank, s.rows.length - 1);
    const row = s.rows[shown.rank], may = new Set(row.may), done = new Set(row.blocks.map((b) => b.name));
    const tabs = s.rows.map((each) => button(String(each.rank), () => { shown.rank = each.rank; draw(); },
      { "aria-pressed": String(each.rank === shown.rank), "data-key": `tab ${each.rank}` }));
    const table = make("table");
    for (const stage of row.stages) for (const kind of Object.keys(KINDS)) {
      const cells = Array.from({ length: s.micro_batches }, (_, mb) => {
        const name = `${stage}${kind}${mb}`, state = done.has(name) ? "done" : may.has(name) ? "may" : "not";
        const words = { done: "has run", may: "can run now", not: "cannot run now: press to ask why" }[state];
        return make("td", {}, button(name, () => send({ do: "play", rank: row.rank, action: name }), {
          class: `pb-move pb-is-${state} ${look({ kind, further: stage !== row.stages[0] })}`, tabindex: stage === row.stages[0] && kind === "F" && !mb ? 0 : -1,
          title: words, "aria-label": `${name}: ${words}`, "data-key": `move ${row.rank} ${name}` }));
      });
      table.append(make("tr", {}, make("th", {}, row.stages.length > 1 ? `${stage}: ${KINDS[kind]}` : KINDS[kind]), ...cells));
    }
    moves.replaceChildren(make("div", { class: "pb-bar" }, make("b", {}, "Any move of rank"), ...tabs,
      make("span", { class: "pb-label" }, "1B0: stage 1, B, micro-batch 0. Dashed: not now; press to ask why")), make("div", { class: "pb-scroll" }, table));
  }

  function drawRun() {
    const busy = model.get("busy"), bytes = model.get("picture");
    run.disabled = Boolean(busy);
    ran.replaceChildren(busy ? make("div", { class: "pb-message pb-quiet", role: "status" }, busy) : "");
    if (shown.url) URL.revokeObjectURL(shown.url);
    shown.url = null;
    if (!busy && bytes && bytes.byteLength) {
      shown.url = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
      ran.replaceChildren(make("img", { src: shown.url, alt: model.get("told"), class: "pb-picture" }), make("div", { class: "pb-label" }, model.get("told")));
    }
  }

  function draw() {
    const s = model.get("state");
    const key = root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    drawHead(s); drawBoard(s); drawFacts(s); drawMoves(s);
    run.classList.toggle("pb-ready", s.full);
    if (document.activeElement !== text) text.value = s.text;
    if (key) {
      const find = (start) => root.querySelector(`[data-key^="${start}"]`);
      const again = root.querySelector(`[data-key="${key}"]`) || find(key.split(" ", 2).join(" ")) || find("next");
      if (again) again.focus();
    }
    say(s.message.text || s.verdict, s.message.kind);
  }
  const follow = { "change:state": draw, "change:level": draw, "change:busy": drawRun, "change:picture": drawRun };
  for (const [name, act] of Object.entries(follow)) model.on(name, act);
  draw(); drawRun();
  let last = 0;
  const watch = new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - last) > 1) { last = entry.contentRect.width; drawBoard(model.get("state")); }
  });
  watch.observe(root);
  return () => {
    watch.disconnect();
    for (const [name, act] of Object.entries(follow)) model.off(name, act);
    if (shown.url) URL.revokeObjectURL(shown.url);
  };
}

export default { render };
