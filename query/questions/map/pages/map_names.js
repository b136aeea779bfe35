// The names of groups on the map, written next to them if there is room: the rules of query/questions/map/groups.py, for the
// current view.

const NAME_FONT = "600 12px system-ui, sans-serif";
const LONGEST_NAME = 28;
const GAP = 4; // pixels between a name and its surroundings
const FARTHEST = 0.1; // of the longer side, between a disc and its name
const MOST_AVOIDED = 5000; // models that names avoid; with more, a sample of them
const BUTTONS = { width: 54, height: 140 }; // the corner at the top right, in pixels
let names = []; // the written names, as { text, x, y, width, height } in pixels

function shortened(text) {
  const half = Math.floor((LONGEST_NAME - 1) / 2);
  return text.length <= LONGEST_NAME ? text : `${text.slice(0, half)}…${text.slice(text.length - half)}`;
}

// Centres of boxes around a disc, the nearest first; at each distance, above and below before the sides.
function* aroundDisc(x, y, radius, width, height) {
  const angles = Array.from({ length: 16 }, (_, turn) => (turn * Math.PI) / 8);
  angles.sort((a, b) => Math.abs(Math.cos(a)).toFixed(6) - Math.abs(Math.cos(b)).toFixed(6) || Math.sin(b) - Math.sin(a));
  const reach = FARTHEST * Math.max(view.width, view.height);
  for (let step = 1; step <= 7; step++) {
    const away = radius * Math.min(1, step / 2) + (reach * step) / 7;
    for (const angle of angles) {
      yield [x + Math.cos(angle) * (away + width / 2), y - Math.sin(angle) * (away + height / 2)];
    }
  }
}

// Whether a box is on the map, avoids every point and name, and is closer to its own group than to any other.
function hasRoom(x, y, width, height, group, points) {
  const edge = data.axes ? 24 : 0; // space for the axis labels
  if (x < width / 2 + edge || x + width / 2 > view.width || y < height / 2 || y + height / 2 > view.height - edge) return false;
  if (x + width / 2 > view.width - BUTTONS.width && y - height / 2 < BUTTONS.height) return false;
  const isTaken = (other) =>
    Math.abs(x - other.x) < (width + other.width) / 2 + GAP && Math.abs(y - other.y) < (height + other.height) / 2 + GAP;
  if (names.some(isTaken)) return false;
  const closest = radius() + GAP;
  let [own, others] = [Infinity, Infinity];
  for (const [px, py, code] of points) {
    const away = Math.hypot(Math.max(Math.abs(px - x) - width / 2, 0), Math.max(Math.abs(py - y) - height / 2, 0));
    if (away < closest) return false;
    if (code === group) own = Math.min(own, away);
    else others = Math.min(others, away);
  }
  return own <= others;
}

function writeNames(on) {
  names = [];
  const coloring = data.colorings[state.coloring];
  if (coloring.kind !== "groups") return;
  const hidden = state.hidden[state.coloring];
  const points = [];
  const seen = new Set();
  const step = Math.ceil(count / MOST_AVOIDED);
  for (let i = 0; i < count; i += step) {
    if (!shown[i] || !isPlaced(i)) continue;
    const [x, y] = [screenX(i), screenY(i)];
    if (x < -80 || y < -80 || x > view.width + 80 || y > view.height + 80) continue;
    points.push([x, y, coloring.codes[i]]);
    seen.add(coloring.codes[i]);
  }
  on.font = NAME_FONT;
  on.textAlign = "center";
  on.textBaseline = "middle";
  on.lineJoin = "round";
  coloring.discs.forEach((disc, group) => {
    if (!disc || hidden.has(group) || !seen.has(group)) return;
    const [x, y] = screenOf(disc[0], disc[1]);
    const text = shortened(coloring.groups[group][0]);
    const [width, height] = [on.measureText(text).width, 13];
    for (const [left, top] of aroundDisc(x, y, disc[2] * view.scale, width, height)) {
      if (!hasRoom(left, top, width, height, group, points)) continue;
      names.push({ text, x: left, y: top, width, height });
      break;
    }
  });
  for (const { text, x, y } of names) {
    on.lineWidth = 3;
    on.strokeStyle = theme().background;
    on.strokeText(text, x, y);
    on.fillStyle = theme().ink;
    on.fillText(text, x, y);
  }
}
