// Graphs zoom, pan, search and fold. A graph is an SVG in a box that scrolls; zooming changes the size of the SVG, so that
// scrolling, touch and keys go on as without this script. When the page is refreshed, what was set is set again.

const state = { zoom: 1, search: "", chosen: "", folded: new Map() }; // folded: key of a node -> Set of "up", "down"
let nodes, edges;

const box = () => document.querySelector(".graph-box");
const tools = () => document.querySelector(".graph-tools");
const within = (value, least, most) => Math.max(least, Math.min(most, value));

// size zooms around a point of the box, by default its middle.
function size(zoom, x, y) {
  const region = box(), svg = region.querySelector("svg"), [, , width, height] = svg.getAttribute("viewBox").split(" ");
  const before = state.zoom;
  state.zoom = within(zoom, 0.1, 4);
  [x, y] = [x ?? region.clientWidth / 2, y ?? region.clientHeight / 2];
  const [left, top] = [(region.scrollLeft + x) / before, (region.scrollTop + y) / before];
  svg.setAttribute("width", Math.round(width * state.zoom));
  svg.setAttribute("height", Math.round(height * state.zoom));
  region.scrollTo(left * state.zoom - x, top * state.zoom - y);
}

function fit() {
  const svg = box().querySelector("svg");
  size(box().clientWidth / svg.viewBox.baseVal.width);
}

// center scrolls to a node.
function center(node) {
  const region = box(), at = node.transform.baseVal[0].matrix, { width, height } = node.querySelector("rect").getBBox();
  region.scrollTo((at.e + width / 2) * state.zoom - region.clientWidth / 2,
    (at.f + height / 2) * state.zoom - region.clientHeight / 2);
}

// beyond returns the nodes that lead to a node, or that it leads to.
function beyond(key, direction) {
  const [near, far] = direction === "up" ? ["to", "from"] : ["from", "to"];
  const reached = new Set(), next = [key];
  while (next.length) {
    const at = next.pop();
    for (const edge of edges) {
      const other = edge[far];
      if (edge[near] !== at || reached.has(other) || other === key) continue;
      reached.add(other);
      next.push(other);
    }
  }
  return reached;
}

function fold(direction) {
  if (!state.chosen) return;
  const set = state.folded.get(state.chosen) ?? new Set();
  set.has(direction) ? set.delete(direction) : set.add(direction);
  state.folded.set(state.chosen, set);
  show();
}

// show sets what is hidden, found and chosen.
function show() {
  const away = new Set();
  for (const [key, directions] of state.folded)
    for (const direction of directions) for (const other of beyond(key, direction)) away.add(other);
  const wanted = state.search.trim().toLowerCase();
  const hits = [];
  for (const [key, node] of nodes) {
    const hit = wanted !== "" && !away.has(key) && node.textContent.toLowerCase().includes(wanted);
    if (hit) hits.push(node);
    node.classList.toggle("found", hit);
    node.classList.toggle("lost", wanted !== "" && !hit);
    node.classList.toggle("chosen", key === state.chosen);
    node.toggleAttribute("hidden", away.has(key));
  }
  for (const { path, from, to } of edges) path.toggleAttribute("hidden", away.has(from) || away.has(to));

  const bar = tools();
  bar.hidden = false;
  bar.querySelector("input").value = state.search;
  for (const name of ["up", "down"]) {
    const button = bar.querySelector(`[data-do=${name}]`);
    button.disabled = !nodes.has(state.chosen);
    button.setAttribute("aria-pressed", String(state.folded.get(state.chosen)?.has(name) ?? false));
  }
  bar.querySelector("[data-do=all]").disabled = away.size === 0;
  const said = [wanted && `${hits.length} found`, away.size && `${away.size} folded away`].filter(Boolean).join(", ");
  const status = bar.querySelector("[role=status]");
  if (status.textContent !== said) status.textContent = said;
  return hits;
}

const actions = {
  in: () => size(state.zoom * 1.25), out: () => size(state.zoom / 1.25), whole: () => size(1), fit,
  up: () => fold("up"), down: () => fold("down"), all: () => (state.folded.clear(), show()),
};
const keys = { "+": "in", "=": "in", "-": "out", 0: "whole", f: "fit", "[": "up", "]": "down" };

// keyOf names a node, also when the page is refreshed: by where it leads, or else by what the page calls it.
const keyOf = (node) => node.getAttribute("href") ?? node.dataset.node;

// read finds the nodes and edges of the page as it is now. The page lists the two ends of each edge by their places.
function read() {
  const drawn = [...box().querySelector(".nodes").children], lines = box().querySelector(".edges");
  nodes = new Map(drawn.map((node) => [keyOf(node), node]));
  const ends = lines.dataset.ends ? lines.dataset.ends.split(",") : [];
  edges = [...lines.querySelectorAll("path")].map((path, i) => {
    const [from, to] = ends[i].split(" ").map((at) => keyOf(drawn[at]));
    return { path, from, to };
  });
}

function choose(event) {
  const node = event.target.closest?.(".nodes > *"), key = node && keyOf(node);
  if (!key || key === state.chosen) return;
  state.chosen = key;
  show();
}

// tell gives the edge under the pointer a title: which nodes it joins.
function tell(event) {
  const edge = event.target.closest?.(".edges path") && edges.find(({ path }) => path === event.target);
  if (!edge || edge.path.firstChild) return;
  const name = (key) => nodes.get(key).querySelector("text").textContent;
  const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
  title.textContent = `${name(edge.from)} to ${name(edge.to)}`;
  edge.path.append(title);
}

function start() {
  const region = box(), bar = tools();
  read();
  show();
  bar.addEventListener("click", (event) => actions[event.target.dataset.do]?.());
  bar.addEventListener("input", (event) => {
    state.search = event.target.value;
    const [first] = show();
    if (first) center(first);
  });
  bar.addEventListener("keydown", (event) => {
    const [first] = event.key === "Enter" ? show() : [];
    first?.focus?.();
  });

  region.addEventListener("focusin", choose);
  region.addEventListener("pointerover", choose);
  region.addEventListener("pointerover", tell);
  region.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  region.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const at = region.getBoundingClientRect();
    size(state.zoom * Math.exp(-event.deltaY / 300), event.clientX - at.left, event.clientY - at.top);
  }, { passive: false });

  // Dragging pans; a click that ends a drag follows no link.
  let from, moved = false;
  region.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType !== "mouse") return;
    from = [event.clientX + region.scrollLeft, event.clientY + region.scrollTop];
    moved = false;
  });
  addEventListener("pointermove", (event) => {
    if (!from) return;
    const [left, top] = [from[0] - event.clientX, from[1] - event.clientY];
    moved ||= Math.abs(left - region.scrollLeft) + Math.abs(top - region.scrollTop) > 4;
    if (moved) region.scrollTo(left, top);
  });
  addEventListener("pointerup", () => (from = undefined));
  region.addEventListener("click", (event) => moved && event.preventDefault(), true);
  region.addEventListener("dragstart", (event) => event.preventDefault());

  document.addEventListener("page:refreshed", () => {
    if (!box()) return;
    const [left, top] = [region.scrollLeft, region.scrollTop];
    read();
    const svg = region.querySelector("svg"), drawn = svg.viewBox.baseVal;
    svg.setAttribute("width", Math.round(drawn.width * state.zoom));
    svg.setAttribute("height", Math.round(drawn.height * state.zoom));
    region.scrollTo(left, top);
    show();
  });
}

if (box()) start();
