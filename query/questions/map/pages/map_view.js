// The canvas: positions of models on the screen, and how they are drawn.

const canvas = document.getElementById("map");
const pen = canvas.getContext("2d");
const EDGES = { left: 36, right: 64, top: 30, bottom: 46 }; // CSS pixels beyond the outermost models: for buttons and axes
const view = { width: 1, height: 1, ratio: 1, x: 0, y: 0, scale: 1, whole: 1 };

const bounds = (() => {
  const span = (values) => {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    return low > high ? [0, 0] : [low, high];
  };
  return { x: span(data.x), y: span(data.y) };
})();

function fitScale() {
  const [width, height] = [bounds.x[1] - bounds.x[0], bounds.y[1] - bounds.y[0]];
  const across = Math.max(view.width - EDGES.left - EDGES.right, 20);
  const down = Math.max(view.height - EDGES.top - EDGES.bottom, 20);
  const scale = Math.min(width ? across / width : Infinity, height ? down / height : Infinity);
  return Number.isFinite(scale) ? scale : 1;
}

function showAll() {
  view.whole = view.scale = fitScale();
  view.x = (bounds.x[0] + bounds.x[1]) / 2 + (EDGES.right - EDGES.left) / 2 / view.scale;
  view.y = (bounds.y[0] + bounds.y[1]) / 2 + (EDGES.top - EDGES.bottom) / 2 / view.scale;
  noteView();
  redraw();
}

function fitCanvas() {
  const { width, height } = canvas.getBoundingClientRect();
  if (!width || !height) return;
  const isWhole = view.scale === view.whole;
  const zoomed = view.scale / view.whole;
  Object.assign(view, { width, height, ratio: window.devicePixelRatio || 1 });
  canvas.width = Math.round(width * view.ratio);
  canvas.height = Math.round(height * view.ratio);
  forgetSheet();
  if (isWhole) return showAll();
  view.whole = fitScale();
  view.scale = view.whole * zoomed;
  redraw();
}

function screenOf(x, y) {
  return [(x - view.x) * view.scale + view.width / 2, (view.y - y) * view.scale + view.height / 2];
}

function screenX(i) {
  return (data.x[i] - view.x) * view.scale + view.width / 2;
}

function screenY(i) {
  return (view.y - data.y[i]) * view.scale + view.height / 2;
}

function mapPlace(x, y) {
  return [(x - view.width / 2) / view.scale + view.x, view.y - (y - view.height / 2) / view.scale];
}

function zoomAt(x, y, factor) {
  const scale = Math.min(Math.max(view.scale * factor, view.whole / 2), view.whole * 400);
  const change = 1 / view.scale - 1 / scale;
  view.x += (x - view.width / 2) * change;
  view.y -= (y - view.height / 2) * change;
  view.scale = scale;
  redrawMoving();
}

function moveBy(x, y) {
  view.x -= x / view.scale;
  view.y += y / view.scale;
  redrawMoving();
}

// Bring a model into view.
function reveal(i) {
  if (!isPlaced(i)) return;
  const [x, y] = [screenX(i), screenY(i)];
  if (x > EDGES.left && x < view.width - EDGES.right && y > EDGES.top && y < view.height - EDGES.bottom) return;
  view.x = data.x[i];
  view.y = data.y[i];
  redraw();
}

// Radius of a point in CSS pixels: smaller for many points, larger at high zoom.
function radius() {
  const plain = Math.min(Math.max(50 / Math.sqrt(count), 2), 6);
  return Math.min(plain * (view.scale / view.whole) ** 0.3, Math.max(plain, 9));
}

// The nearest shown model at a position of the canvas; NONE if none is close enough.
function modelAt(x, y, reach) {
  let [best, nearest] = [NONE, (radius() + reach) ** 2];
  for (let i = 0; i < count; i++) {
    if (!shown[i] && i !== state.selected) continue;
    const distance = (screenX(i) - x) ** 2 + (screenY(i) - y) ** 2;
    if (distance < nearest) [best, nearest] = [i, distance];
  }
  return best;
}

// ---- drawing ----

function trace(on, shape, x, y, r) {
  on.beginPath();
  if (shape === "circle") on.arc(x, y, r, 0, 2 * Math.PI);
  else {
    on.moveTo(x, y - 1.25 * r);
    on.lineTo(x + 1.15 * r, y + 0.8 * r);
    on.lineTo(x - 1.15 * r, y + 0.8 * r);
    on.closePath();
  }
}

function drawPoint(i) {
  const { colour, isRing, size } = looks[i];
  const { image, half } = stamp(shapeOf(i), colour, radius() * size, isRing);
  pen.drawImage(image, screenX(i) - half, screenY(i) - half, image.width / view.ratio, image.height / view.ratio);
}

function drawRing(i, width) {
  trace(pen, "circle", screenX(i), screenY(i), radius() + 3.5);
  pen.strokeStyle = theme().ink;
  pen.lineWidth = width;
  pen.stroke();
}

// Lines to the nearest models, thicker for more similar ones, with the cosine if there is room.
function drawNeighbours(i) {
  const colours = theme();
  const near = isPlaced(i) ? neighboursOf(i).filter(([j]) => isPlaced(j)) : [];
  const [x, y] = [screenX(i), screenY(i)];
  pen.strokeStyle = colours.ink;
  for (const [j, cosine] of near) {
    pen.globalAlpha = 0.25 + 0.55 * Math.max(0, cosine);
    pen.lineWidth = 0.75 + 2 * Math.max(0, cosine);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(screenX(j), screenY(j));
    pen.stroke();
  }
  pen.globalAlpha = 1;
  for (const [j] of near) if (shown[j]) drawPoint(j);
  pen.font = "600 11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  const written = [];
  for (const [j, cosine] of near) {
    const [dx, dy] = [screenX(j) - x, screenY(j) - y];
    const length = Math.hypot(dx, dy);
    const [tx, ty] = [x + dx * 0.62, y + dy * 0.62];
    if (length < 55 || written.some(([ox, oy]) => Math.abs(ox - tx) < 32 && Math.abs(oy - ty) < 15)) continue;
    written.push([tx, ty]);
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeStyle = colours.background;
    pen.strokeText(cosine.toFixed(2), tx, ty);
    pen.fillStyle = colours.ink;
    pen.fillText(cosine.toFixed(2), tx, ty);
  }
}

function drawAxes() {
  if (!data.axes) return;
  pen.fillStyle = theme().ink;
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "top";
  pen.fillText(data.axes[0], view.width / 2, view.height - 18 - part("help").offsetHeight);
  pen.save();
  pen.translate(10, view.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(data.axes[1], 0, 0);
  pen.restore();
}

function draw() {
  pen.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  pen.fillStyle = theme().background;
  pen.fillRect(0, 0, view.width, view.height);
  const chosen = [...new Set([state.selected, state.hovered])].filter((i) => i !== NONE);
  const focused = state.hovered !== NONE ? state.hovered : state.selected;
  layPoints();
  drawAxes();
  if (focused !== NONE) drawNeighbours(focused);
  for (const i of chosen.filter(isPlaced)) {
    drawPoint(i);
    drawRing(i, i === state.selected ? 2.5 : 1.5);
  }
  if (state.area) drawArea(state.area);
}

// The area of the map that filters.
function drawArea([left, bottom, right, top]) {
  pen.strokeStyle = theme().ink;
  pen.lineWidth = 1;
  pen.setLineDash([5, 4]);
  const [x, y] = [screenOf(left, top), screenOf(right, bottom)];
  pen.strokeRect(x[0], x[1], y[0] - x[0], y[1] - x[1]);
  pen.setLineDash([]);
}

let isWaiting = false;

function redraw() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    draw();
  });
}
