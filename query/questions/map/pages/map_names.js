// The names on the map: of each model where few are in view, else of the groups. The rules of query/questions/map/groups.py,
// for the current view: all names of a set are written, or none; beside what they name, or with a line to it.

const NAME_FONT = "600 12px system-ui, sans-serif";
const MODEL_FONT = "500 11px system-ui, sans-serif";
const LONGEST_NAME = 28; // characters
const GAP = 4; // pixels between a name and its surroundings
const [STEPS_BESIDE, FARTHEST, FARTHEST_FROM_POINT] = [7, 0.06, 0.03]; // distances beside a group, up to this share of the longer side
const LONGEST_LINE = 0.6; // of the longer side
const MOST_AVOIDED = 5000; // models that names avoid; with more, a sample of them
const BUTTONS = { width: 54, height: 140 }; // the corner at the top right, in pixels
let names = []; // the written names, as { text, x, y, width, height, line } in pixels

function shortened(text) {
  const half = Math.floor((LONGEST_NAME - 1) / 2);
  return text.length <= LONGEST_NAME ? text : `${text.slice(0, half)}…${text.slice(text.length - half)}`;
}

// The last part of each id, without the base's name and the words with which all begin; the whole id where several models
// share what is left.
const ofBase = new RegExp(`${data.prefix.replace(/[^\w]/g, "\\$&")}[-_.]+(?=.)`, "i");
function lastPart(model) {
  const last = model.split("/").pop() || model;
  return data.prefix ? last.replace(ofBase, "") : last;
}

const lastParts = withoutShared(data.models.map(lastPart));

function withoutShared(parts) {
  if (parts.length < 2) return parts;
  let length = parts[0].length;
  for (const text of parts) while (!text.startsWith(parts[0].slice(0, length))) length -= 1;
  const shared = parts[0].slice(0, length).match(/^.*[-_.]/)?.[0] ?? "";
  return parts.map((text) => text.slice(shared.length) || text);
}

const sharing = new Map();
for (const last of lastParts) sharing.set(last, (sharing.get(last) ?? 0) + 1);
const shortNameOf = (i) => (sharing.get(lastParts[i]) === 1 ? lastParts[i] : data.models[i]);

const DIRECTIONS_AROUND = Array.from({ length: 16 }, (_, turn) => (turn * Math.PI) / 8)
  .sort((a, b) => Math.abs(Math.cos(a)).toFixed(6) - Math.abs(Math.cos(b)).toFixed(6) || Math.sin(b) - Math.sin(a))
  .map((angle) => [Math.cos(angle), Math.sin(angle)]);

// Boxes at a distance from a spot; above and below before the sides.
function* around(spot, away, { width, height }) {
  for (const [cosine, sine] of DIRECTIONS_AROUND) {
    yield { x: spot.x + cosine * (away + width / 2), y: spot.y - sine * (away + height / 2), width, height };
  }
}

function toBox(x, y, box) {
  return Math.hypot(Math.max(Math.abs(x - box.x) - box.width / 2, 0), Math.max(Math.abs(y - box.y) - box.height / 2, 0));
}

// Whether a line comes nearer to a box than half the gap (by slabs: Kay & Kajiya, 1986).
function meets([[ax, ay], [bx, by]], box) {
  let [enters, leaves] = [0, 1];
  for (const [start, run, middle, size] of [[ax, bx - ax, box.x, box.width], [ay, by - ay, box.y, box.height]]) {
    const [low, high] = [middle - size / 2 - GAP / 2 - start, middle + size / 2 + GAP / 2 - start];
    if (Math.abs(run) < 1e-9) {
      if (low > 0 || high < 0) return false;
      continue;
    }
    enters = Math.max(enters, Math.min(low / run, high / run));
    leaves = Math.min(leaves, Math.max(low / run, high / run));
  }
  return enters <= leaves;
}

// From a point to a line.
function toLine(x, y, [[ax, ay], [bx, by]]) {
  const length = Math.max((bx - ax) ** 2 + (by - ay) ** 2, 1e-12);
  const part = Math.min(1, Math.max(0, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / length));
  return Math.hypot(x - ax - part * (bx - ax), y - ay - part * (by - ay));
}

function cross(one, other) {
  const side = ([[ax, ay], [bx, by]], [x, y]) => (bx - ax) * (y - ay) - (by - ay) * (x - ax);
  return side(one, other[0]) * side(one, other[1]) < 0 && side(other, one[0]) * side(other, one[1]) < 0;
}

// Whether a box is on the map, and overlaps no button or name.
function isFree(box) {
  const edge = data.axes ? 24 : 2; // space for the axis labels
  const below = edge + part("help").offsetHeight;
  const { x, y, width, height } = box;
  if (x < width / 2 + edge || x + width / 2 > view.width || y < height / 2 || y + height / 2 > view.height - below) return false;
  if (x + width / 2 > view.width - BUTTONS.width && y - height / 2 < BUTTONS.height) return false;
  const isTaken = (other) =>
    Math.abs(x - other.x) < (width + other.width) / 2 + GAP && Math.abs(y - other.y) < (height + other.height) / 2 + GAP;
  return !names.some(isTaken);
}

// Whether a box covers no point; `own`: and is as close to a point of its own group as to any other.
function avoidsPoints(box, group, points, own) {
  const closest = radius() + GAP;
  let [mine, others] = [Infinity, Infinity];
  for (const [x, y, code] of points) {
    const away = toBox(x, y, box);
    if (away < closest) return false;
    if (code === group) mine = Math.min(mine, away);
    else others = Math.min(others, away);
  }
  return !own || mine <= others;
}

function besideSpot(spot, group, size, points) {
  if (spot.isScattered) return null;
  const reach = (spot.radius ? FARTHEST : FARTHEST_FROM_POINT) * Math.max(view.width, view.height);
  for (let step = 1; step <= STEPS_BESIDE; step++) {
    for (const box of around(spot, spot.radius * Math.min(1, step / 2) + (reach * step) / STEPS_BESIDE, size)) {
      if (isFree(box) && !coversLine(box) && avoidsPoints(box, group, points, true)) return box;
    }
  }
  return null;
}

// Boxes all over the map, those whose edge is nearest to the spot first.
function everywhere(spot, { width, height }) {
  const boxes = [];
  for (let x = width / 2; x <= view.width - width / 2; x += height) {
    for (let y = height / 2; y <= view.height - height / 2; y += height) {
      const box = { x, y, width, height };
      boxes.push([toBox(spot.x, spot.y, box), box]);
    }
  }
  const longest = LONGEST_LINE * Math.max(view.width, view.height);
  return boxes.filter(([away]) => away <= longest).sort(([a], [b]) => a - b).map(([, box]) => box);
}

const coversLine = (box) => names.some(({ line }) => line && meets(line, box));

// The nearest place with a line to the spot, of those with the least fault: the line touches a point of another group,
// crosses another line, or a name.
function withLine(spot, group, size, points) {
  const found = [];
  let tried = 0;
  for (const box of everywhere(spot, size)) {
    if (!isFree(box) || !avoidsPoints(box, group, points, false)) continue;
    const line = lineTo(spot, group, box, points);
    const touches = ([x, y, code]) => code !== group && toLine(x, y, line) <= (GAP + radius()) / 2;
    const isThroughName = coversLine(box) || names.some((other) => meets(line, other));
    const fault = isThroughName ? 6 : names.some((other) => other.line && cross(line, other.line)) ? 2 : Number(points.some(touches));
    found[fault] ??= { ...box, line, fault };
    if (!fault || tried++ > ENOUGH) break;
  }
  return found.find(Boolean) ?? null;
}

// From the edge of a name to the spot; to the nearest point inside a disc.
function lineTo(spot, group, box, points) {
  let end = [spot.x, spot.y];
  let nearest = Infinity;
  if (spot.radius) {
    for (const [x, y, code] of points) {
      const away = toBox(x, y, box);
      if (code !== group || away >= nearest || Math.hypot(x - spot.x, y - spot.y) > spot.radius * 1.001) continue;
      [nearest, end] = [away, [x, y]];
    }
  }
  const within = (value, middle, size) => Math.min(Math.max(value, middle - size / 2), middle + size / 2);
  return [[within(end[0], box.x, box.width), within(end[1], box.y, box.height)], end];
}

const isInView = (x, y, beyond) => x >= -beyond && y >= -beyond && x <= view.width + beyond && y <= view.height + beyond;

function pointsInView(beyond, codeOf) {
  const points = [];
  const step = Math.ceil(count / MOST_AVOIDED);
  for (let i = 0; i < count; i += step) {
    if (!shown[i] || !isPlaced(i)) continue;
    const [x, y] = [screenX(i), screenY(i)];
    if (isInView(x, y, beyond)) points.push([x, y, codeOf(i)]);
  }
  return points;
}

// The sets of names to try in the current view, each with its font, spots as [text, group, spot], and points with groups.
function* wanted() {
  const near = count <= MOST_AVOIDED ? pointsInView(0, (i) => i) : [];
  if (near.length && near.length < data.named) {
    const spots = near.map(([x, y, i]) => [shortNameOf(i), i, { x, y, radius: 0 }]);
    yield { font: MODEL_FONT, spots, points: pointsInView(80, (i) => i) };
  }
  const coloring = data.colorings[state.coloring];
  if (coloring.kind !== "groups") return;
  const points = pointsInView(80, (i) => coloring.codes[i]);
  const seen = new Set(points.map(([, , code]) => code));
  const spots = coloring.spots.flatMap((spot, group) => {
    if (!spot || state.hidden[state.coloring].has(group < data.legend ? group : "rest") || !seen.has(group)) return [];
    const [x, y] = screenOf(spot[0], spot[1]);
    if (!isInView(x, y, 0)) return [];
    return [[coloring.groups[group][0], group, { x, y, radius: spot[2] * view.scale, isScattered: Boolean(spot[3]) }]];
  });
  const scattered = spots.filter(([, , { isScattered }]) => isScattered).length;
  if (2 * scattered < spots.length) yield { font: NAME_FONT, spots, points };
}

const ENOUGH = 200; // places with a line that are tried until one is good
const ATTEMPTS = 6; // orders in which the names are placed

// The places of all names of a set, with the fewest faults; null if one finds no room.
function placed(on, { font, spots, points }) {
  on.font = font;
  // A name in a crowd has the least choice, so it comes first; in the next attempt, the one that found the worst place.
  const toOthers = ([, group, spot]) =>
    points.reduce((least, [x, y, code]) => (code === group ? least : Math.min(least, Math.hypot(x - spot.x, y - spot.y))), 1e9) - spot.radius;
  let order = spots.map((one) => [toOthers(one), one]).sort(([a], [b]) => a - b).map(([, one]) => one);
  let [best, fewest] = [null, Infinity];
  for (let attempt = 0; attempt < ATTEMPTS && fewest; attempt++) {
    names = [];
    let [worst, most, total] = [order[0], 0, 0];
    for (const one of order) {
      const [whole, group, spot] = one;
      const text = shortened(whole);
      const size = { width: on.measureText(text).width, height: 13 };
      const place = besideSpot(spot, group, size, points) ?? withLine(spot, group, size, points);
      const fault = place ? place.fault ?? 0 : Infinity;
      total += fault;
      if (fault > most) [worst, most] = [one, fault];
      if (!place) break;
      names.push({ text, ...place });
    }
    if (total < fewest) [best, fewest] = [names, total];
    order = [worst, ...order.filter((one) => one !== worst)];
  }
  return best;
}

function writeNames(on) {
  on.textAlign = "center";
  on.textBaseline = "middle";
  on.lineJoin = "round";
  let found = null;
  for (const set of wanted()) if ((found = placed(on, set))) break;
  names = found ?? [];
  for (const { line } of names) {
    if (!line) continue;
    on.globalAlpha = 0.7;
    on.lineWidth = 1;
    on.strokeStyle = theme().ink;
    on.beginPath();
    on.moveTo(...line[0]);
    on.lineTo(...line[1]);
    on.stroke();
    on.globalAlpha = 1;
  }
  for (const { text, x, y } of names) {
    on.lineWidth = 3;
    on.strokeStyle = theme().background;
    on.strokeText(text, x, y);
    on.fillStyle = theme().ink;
    on.fillText(text, x, y);
  }
}
