// Pointer and keyboard control of the map, and the theme.

// ---- choosing ----

function choose(i, reveals = false) {
  state.selected = i;
  state.hovered = NONE;
  part("tooltip").hidden = true;
  if (i !== NONE && reveals) reveal(i);
  showSelected();
  showTable();
  noteView();
  if (i !== NONE) say(`${data.models[i]}. ${factsOf(i).map((fact) => fact.join(" ")).join(", ")}`);
  redraw();
}

function hover(i, x, y) {
  const tooltip = part("tooltip");
  if (i !== state.hovered) {
    state.hovered = i;
    canvas.classList.toggle("over", i !== NONE);
    if (i !== NONE) fillTooltip(i);
    tooltip.hidden = i === NONE;
    redraw();
  }
  if (i === NONE) return;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 16 + width > view.width ? x - 16 - width : x + 16;
  const top = y + 16 + height > view.height ? y - 16 - height : y + 16;
  const inside = (position, size, room) => Math.max(4, Math.min(position, room - size - 4));
  tooltip.style.transform = `translate(${inside(left, width, view.width)}px, ${inside(top, height, view.height)}px)`;
}

// ---- pointer: mouse, pen and fingers ----

const pointers = new Map(); // pressed pointers, by id: [x, y]
let travelled = 0; // pixels since the first was pressed
let corner = null; // where a selection with the shift key started

function placeOf(event) {
  const { left, top } = canvas.getBoundingClientRect();
  return [event.clientX - left, event.clientY - top];
}

canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  if (!pointers.size) travelled = 0;
  pointers.set(event.pointerId, placeOf(event));
  corner = event.shiftKey ? placeOf(event) : null;
  canvas.setPointerCapture(event.pointerId);
});

canvas.addEventListener("pointermove", (event) => {
  const [x, y] = placeOf(event);
  const before = pointers.get(event.pointerId);
  if (!before) return hover(modelAt(x, y, 5), x, y);
  pointers.set(event.pointerId, [x, y]);
  travelled += Math.hypot(x - before[0], y - before[1]);
  if (travelled < 4) return;
  hover(NONE);
  if (corner) {
    state.area = areaBetween(corner, [x, y]);
    return redraw();
  }
  canvas.classList.add("moved");
  const others = [...pointers].filter(([id]) => id !== event.pointerId);
  if (others.length) pinch(others[0][1], before, [x, y]);
  else moveBy(x - before[0], y - before[1]);
});

function areaBetween(first, second) {
  const [a, b] = [mapPlace(...first), mapPlace(...second)];
  return [Math.min(a[0], b[0]), Math.min(a[1], b[1]), Math.max(a[0], b[0]), Math.max(a[1], b[1])];
}

function pinch(still, before, now) {
  const distance = (to) => Math.max(10, Math.hypot(to[0] - still[0], to[1] - still[1]));
  zoomAt((still[0] + now[0]) / 2, (still[1] + now[1]) / 2, distance(now) / distance(before));
  moveBy((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
}

canvas.addEventListener("pointerup", (event) => {
  const isClick = pointers.delete(event.pointerId) && travelled < 4 && !pointers.size;
  if (!pointers.size) canvas.classList.remove("moved");
  if (corner && !isClick) refresh();
  corner = null;
  if (!isClick) return;
  const i = modelAt(...placeOf(event), event.pointerType === "mouse" ? 5 : 16);
  choose(i);
});

canvas.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
canvas.addEventListener("pointerleave", () => hover(NONE));
canvas.addEventListener("dblclick", (event) => {
  if (modelAt(...placeOf(event), 5) === NONE) showAll();
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const pixels = event.deltaY * [1, 16, view.height][event.deltaMode];
  zoomAt(...placeOf(event), Math.exp(-Math.max(-200, Math.min(pixels, 200)) / 350));
}, { passive: false });

// ---- keys ----

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// The next shown model in a direction: near, and not far to the side.
function nextModel(from, [right, down]) {
  const origin = from === NONE ? [view.width / 2, view.height / 2] : [screenX(from), screenY(from)];
  let [best, least] = [NONE, Infinity];
  for (let i = 0; i < count; i++) {
    if (!shown[i] || i === from) continue;
    const [dx, dy] = [screenX(i) - origin[0], screenY(i) - origin[1]];
    const ahead = dx * right + dy * down;
    const aside = Math.abs(dx * down) + Math.abs(dy * right);
    const cost = from === NONE ? Math.hypot(dx, dy) : ahead > 0 ? ahead + 2 * aside : Infinity;
    if (cost < least) [best, least] = [i, cost];
  }
  return best;
}

canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const from = state.hovered !== NONE ? state.hovered : state.selected;
  if (event.key in DIRECTIONS) {
    const i = nextModel(from, DIRECTIONS[event.key]);
    if (i !== NONE) {
      reveal(i);
      hover(i, screenX(i), screenY(i));
      say(`${data.models[i]}, ${factsOf(i)[1].join(" ")}`);
    }
  } else if (event.key === "Enter" && from !== NONE) choose(from);
  else if (event.key === "Escape") choose(NONE);
  else if (event.key === "+" || event.key === "=") zoomAt(view.width / 2, view.height / 2, 1.4);
  else if (event.key === "-") zoomAt(view.width / 2, view.height / 2, 1 / 1.4);
  else if (event.key === "0" || event.key === "Home") showAll();
  else return;
  event.preventDefault();
});

canvas.addEventListener("blur", () => hover(NONE));
part("closer").addEventListener("click", () => zoomAt(view.width / 2, view.height / 2, 1.6));
part("farther").addEventListener("click", () => zoomAt(view.width / 2, view.height / 2, 1 / 1.6));
part("reset").addEventListener("click", showAll);

// ---- theme, print ----

function applyTheme() {
  const colours = theme();
  const root = document.documentElement;
  for (const name of ["background", "ink", "faint", "rest"]) root.style.setProperty(`--${name}`, colours[name]);
  root.style.setProperty("--accent", colours.palette[0]);
  root.style.colorScheme = isDark() ? "dark" : "light";
  part("theme").textContent = `Theme: ${state.theme}`;
  forgetLooks();
  showLegend();
}

part("theme").addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  state.theme = order[(order.indexOf(state.theme) + 1) % order.length];
  applyTheme();
  noteView();
  redraw();
});

systemIsDark.addEventListener("change", () => {
  applyTheme();
  redraw();
});

let themeOfScreen = null;

addEventListener("beforeprint", () => {
  themeOfScreen = state.theme;
  state.theme = "light";
  applyTheme();
  draw();
});

addEventListener("afterprint", () => {
  state.theme = themeOfScreen;
  applyTheme();
  redraw();
});

// ---- after any change of what is shown ----

function refresh() {
  updateShown();
  forgetSheet();
  showLegend();
  for (const show of filters) show();
  showSelected();
  showTable();
  noteView();
  redraw();
}
