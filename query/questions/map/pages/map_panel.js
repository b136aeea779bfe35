// The panel: search, the legend, and the selected model.

const MOST_FOUND = 20; // search results; more need more words

const part = (id) => document.getElementById(id);

// An element with properties and children; strings become text, never markup.
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

function mark(shape, colour) {
  const node = element("span", { className: `mark ${shape}`, "aria-hidden": "true" });
  node.style[shape === "ring" ? "borderColor" : "background"] = colour;
  return node;
}

// What the address of a model contains in addition to its name, as [name, value].
const furtherAddress = [];

function addressOf(i) {
  return `#${[["model", data.models[i]], ...furtherAddress].map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
}

// A link that acts on this page, and can also be opened in a new tab.
function modelLink(i, act, properties, ...children) {
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    act();
  };
  return element("a", { href: addressOf(i), className: "id", onclick: follow, ...properties }, ...children);
}

function copyButton(text) {
  const button = element("button", { type: "button", className: "plain copy", "aria-label": `Copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copying is not allowed here";
    }
  });
  return button;
}

function say(text) {
  part("said").textContent = text;
}

// ---- one model ----

// How rare such a similarity is among pairs of unrelated models, as in query/wording.py. −n: none of n pairs.
function rarityText(share) {
  if (share < 0) return `none of ${numberText(-share)} pairs`;
  if (share > 0.95) return "nearly all";
  if (share > 0.2) return `${Math.round(10 * share)} in 10`;
  const step = 10 ** Math.max(0, String(Math.floor(1 / share)).length - 2);
  return `1 in ${numberText(Math.round(1 / share / step) * step)}`;
}

function nearestList(i, most, asButtons) {
  const entries = neighboursOf(i).slice(0, most).map(([j, cosine, share]) => {
    const words = [
      element("span", { className: "number" }, cosine.toFixed(3)),
      element("span", { className: "id" }, data.models[j]),
    ];
    if (!asButtons) return element("li", {}, words[0], " ", words[1]);
    const facts = element("span", { className: "facts" }, textOf("dataset", j) ?? facet.dataset.none);
    if (share !== null) facts.append(" · ", rarityText(share));
    words[1].append(facts);
    return element("li", {}, modelLink(j, () => choose(j), { className: "" }, ...words));
  });
  return element("ol", { className: "nearest" }, ...entries);
}

// Parents or children of a model under a title; nothing if there are none.
function kinList(title, kin) {
  if (!kin.length) return [];
  const entries = kin.slice(0, MOST_FOUND).map(([row, name, how]) => {
    const words = element("span", { className: "id" }, name, element("span", { className: "facts" }, how));
    if (row === NONE) return element("li", { className: "kin" }, words);
    return element("li", {}, modelLink(row, () => choose(row, true), { className: "" }, words));
  });
  if (kin.length > entries.length) entries.push(element("li", {}, `and ${numberText(kin.length - entries.length)} more`));
  return [element("h3", {}, title), element("ol", { className: "nearest kin-of" }, ...entries)];
}

function fillTooltip(i) {
  const facts = factsOf(i).map(([name, text]) => element("p", {}, `${name}: ${text}`));
  const near = neighboursOf(i).length ? [element("p", { className: "number" }, "nearest, by cosine:")] : [];
  part("tooltip").replaceChildren(
    element("p", { className: "id" }, data.models[i]), ...facts, ...near, nearestList(i, 5, false),
  );
}

// Further content for the selected model: functions of the model that return elements, and callbacks.
const furtherContent = [];
const whenChosen = [];

function showSelected() {
  const i = state.selected;
  for (const act of whenChosen) act(i);
  const box = part("selected");
  box.hidden = i === NONE;
  if (i === NONE) return box.replaceChildren();
  const facts = factsOf(i).flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);
  const address = { href: `${data.hub}/${data.models[i]}`, target: "_blank", rel: "noopener noreferrer" };
  const link = data.onHub[i] ? [element("p", {}, element("a", address, "Open on the Hub"))] : [];
  const unseen = shown[i] ? [] : [element("p", {}, "Hidden by the filters or the legend.")];
  if (!isPlaced(i) && mixed.length) unseen.push(element("p", {}, "Not on the map."));
  const title = data.backgrounds ? "Nearest, by cosine, and how many pairs of unrelated models are as similar" : "Nearest, by cosine";
  const near = neighboursOf(i).length
    ? [element("h3", {}, title), nearestList(i, Infinity, true)]
    : [element("h3", {}, "No neighbours on this map")];
  const kin = [...kinList("Made from", parentsOf(i)), ...kinList("Made into", children.get(i) ?? [])];
  const further = furtherContent.flatMap((content) => content(i));
  const close = element("button", { type: "button", className: "plain", onclick: () => choose(NONE) }, "Clear");
  box.replaceChildren(
    element("div", { className: "row head" }, element("h2", {}, data.models[i]), copyButton(data.models[i])), ...unseen, element("dl", {}, ...facts), ...link, ...further, ...kin, ...near, close,
  );
}

// ---- search ----

const searchBox = part("search");
const matchList = part("found");
let matches = [];
let active = 0;

function showFound() {
  matches = search(searchBox.value);
  active = 0;
  const entries = matches.slice(0, MOST_FOUND).map((i, index) => element("li", {
    role: "option", id: `found-${index}`, "aria-selected": "false",
    onmousedown: (event) => event.preventDefault(), // the box keeps the focus
    onclick: () => choose(matches[index], true),
  }, data.models[i]));
  const more = matches.length - entries.length;
  const remark = more > 0 ? `and ${more.toLocaleString("en")} more` : matches.length ? "" : "no model has that in its name";
  if (remark) entries.push(element("li", { role: "option", "aria-disabled": "true" }, remark));
  matchList.replaceChildren(...entries);
  openFound(Boolean(searchBox.value.trim()));
  markActive();
}

function openFound(isOpen) {
  matchList.hidden = !isOpen;
  searchBox.setAttribute("aria-expanded", String(isOpen));
  if (!isOpen) searchBox.removeAttribute("aria-activedescendant");
}

function markActive() {
  const entries = matchList.querySelectorAll('[role="option"]:not([aria-disabled])');
  entries.forEach((entry, index) => entry.setAttribute("aria-selected", String(index === active)));
  if (!entries.length || matchList.hidden) return;
  searchBox.setAttribute("aria-activedescendant", `found-${active}`);
  entries[active].scrollIntoView({ block: "nearest" });
}

searchBox.addEventListener("input", showFound);
searchBox.addEventListener("focus", () => searchBox.value && showFound());
searchBox.addEventListener("blur", () => openFound(false));
searchBox.addEventListener("keydown", (event) => {
  const most = Math.min(matches.length, MOST_FOUND);
  if (event.key === "Escape") openFound(false);
  else if (event.key === "Enter" && most && !matchList.hidden) choose(matches[active], true);
  else if (event.key === "ArrowDown" && most) active = matchList.hidden ? 0 : (active + 1) % most;
  else if (event.key === "ArrowUp" && most) active = (active + most - 1) % most;
  else return;
  event.preventDefault();
  if (event.key.startsWith("Arrow")) openFound(true);
  if (event.key === "Enter") openFound(false);
  markActive();
});

// ---- colours and legend ----

const coloringBox = part("coloring");
coloringBox.append(...data.colorings.map(({ column }, index) => element("option", { value: String(index) }, column)));
coloringBox.addEventListener("change", () => {
  state.coloring = Number(coloringBox.value);
  forgetLooks();
  refresh();
});

// The entries of the legend, as [key, text, shape, colour].
function legendEntries() {
  const colours = theme();
  const coloring = data.colorings[state.coloring];
  const unknown = ["none", coloring.none, "ring", colours.ink];
  if (coloring.kind !== "groups") return coloring.values.includes(null) ? [unknown] : [];
  const entries = coloring.groups.slice(0, data.legend).map(([name], index) => [index, name, "circle", colours.palette[index]]);
  const rest = coloring.groups.slice(data.legend);
  const others = rest.length === 1 ? rest[0][0] : `${numberText(rest.length)} others`;
  if (rest.length) entries.push(["rest", others, "circle", colours.rest]);
  return coloring.codes.includes(NONE) ? [...entries, unknown] : entries;
}

function scaleKey(coloring) {
  const bar = element("div", { className: "bar" });
  bar.style.backgroundImage = `linear-gradient(to right, ${theme().scale.join(", ")})`;
  const ends = [coloring.low, coloring.high].map((end) => element("span", {}, valueText(coloring, end)));
  const kind = element("span", { className: "number" }, coloring.kind === "log" ? "logarithmic" : "");
  return element("li", { className: "scale" }, bar, element("div", { className: "ends" }, ends[0], kind, ends[1]));
}

function showLegend() {
  const coloring = data.colorings[state.coloring];
  const hidden = state.hidden[state.coloring];
  const counts = countsOf("legend", (i) => [legendKey(i)]);
  const entries = legendEntries().map(([key, text, shape, colour]) => element("li", {}, element("button", {
    type: "button", "aria-pressed": String(!hidden.has(key)), onclick: () => toggle(key),
  }, mark(shape, colour), element("span", {}, text), element("span", { className: "number" }, numberText(counts.get(key) ?? 0)))));
  if (coloring.kind !== "groups") entries.unshift(scaleKey(coloring));
  const adapters = isAdapter.filter(Boolean).length;
  const shapes = [["circle", "whole models", count - adapters], ["up", "adapters", adapters]];
  if (adapters) {
    for (const [shape, what, models] of shapes.filter(([, , number]) => number)) {
      const words = [mark(shape, theme().ink), element("span", {}, `${what} (${numberText(models)})`)];
      entries.push(element("li", { className: "key" }, ...words));
    }
  }
  const focused = [...part("legend").querySelectorAll("button")].indexOf(document.activeElement);
  part("legend").replaceChildren(...entries);
  if (focused >= 0) part("legend").querySelectorAll("button")[focused]?.focus();
  part("toggle-all").hidden = coloring.kind !== "groups";
  part("toggle-all").textContent = hidden.size ? "Show all" : "Hide all";
}

function toggle(key) {
  const hidden = state.hidden[state.coloring];
  if (!hidden.delete(key)) hidden.add(key);
  refresh();
}

part("toggle-all").addEventListener("click", () => {
  const hidden = state.hidden[state.coloring];
  if (hidden.size) hidden.clear();
  else for (const [key] of legendEntries()) hidden.add(key);
  refresh();
});

part("notes").append(...data.notes.map((note) => element("p", {}, note)));
