// Paints the points on a canvas of their own, which is reused while only the lines above it change.

// Each look is painted once and then copied.
let stamps = new Map();

function stamp(shape, colour, r, isRing = false) {
  const key = `${shape} ${colour} ${r} ${isRing}`;
  if (!stamps.has(key)) {
    const image = document.createElement("canvas");
    const half = Math.ceil(1.3 * r + 2);
    image.width = image.height = Math.ceil(2 * half * view.ratio);
    const on = image.getContext("2d", { willReadFrequently: count > MANY });
    on.scale(view.ratio, view.ratio);
    trace(on, shape, half, half, r);
    on.fillStyle = isRing ? theme().background : colour;
    on.fill();
    if (isRing || count <= 2000) {
      on.strokeStyle = isRing ? colour : theme().background;
      on.lineWidth = isRing ? Math.min(1.4, 0.5 * r) : 1;
      on.stroke();
    }
    stamps.set(key, { image, half });
  }
  return stamps.get(key);
}

let looks = []; // for each point, kept until colours change; points of one key and shape share one
let layers = [];

function forgetLooks() {
  stamps = new Map();
  looks = [];
  forgetSheet();
}

function findLooks() {
  const known = new Map();
  looks = data.models.map((_, i) => {
    const look = lookOf(i);
    const key = `${shapeOf(i)} ${look.colour} ${look.isRing} ${look.size}`;
    if (!known.has(key)) known.set(key, { ...look, shape: shapeOf(i) });
    return known.get(key);
  });
  layers = [0, 1, 2].map((layer) => mixed.filter((i) => looks[i].layer === layer));
}

// Many points are not painted again during a movement: the old image is moved and scaled until the movement stops.
const MANY = 3000;
const REST = 90; // milliseconds
const sheet = document.createElement("canvas");
const sheetPen = sheet.getContext("2d");
let painted = null; // the view that the sheet was painted for
let paintedAt = null; // when it was first painted, in milliseconds since the page was requested
let movedAt = -Infinity;
let settling = 0;

function redrawMoving() {
  movedAt = performance.now();
  noteView(300);
  redraw();
}

function forgetSheet() {
  painted = null;
}

function layPoints() {
  const isPainted = painted && painted.x === view.x && painted.y === view.y && painted.scale === view.scale;
  const isMoving = painted && count > MANY && performance.now() - movedAt < REST;
  if (!isPainted && isMoving) {
    clearTimeout(settling);
    settling = setTimeout(redraw, REST + 10);
  } else if (!isPainted) paintSheet();
  const stretch = view.scale / painted.scale;
  const left = (painted.x - view.x) * view.scale + (view.width * (1 - stretch)) / 2;
  const top = (view.y - painted.y) * view.scale + (view.height * (1 - stretch)) / 2;
  pen.drawImage(sheet, left, top, view.width * stretch, view.height * stretch);
}

function paintSheet() {
  [sheet.width, sheet.height] = [canvas.width, canvas.height]; // this clears it
  sheetPen.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
  painted = { x: view.x, y: view.y, scale: view.scale };
  if (!looks.length) findLooks();
  if (stamps.size > 2000) stamps = new Map();
  const r = Math.round(radius() * 4) / 4;
  const most = count > 300 ? 0.85 : 1; // of opacity
  const { put, finish } = count > MANY ? blending() : stamping();
  const ghostSize = Math.max(1.2, 0.5 * r);
  const ghosts = { circle: stamp("circle", theme().faint, ghostSize), up: stamp("up", theme().faint, ghostSize) };
  for (const i of mixed) if (!shown[i]) put(i, ghosts[looks[i].shape], 1);
  for (const layer of layers) {
    for (const i of layer) {
      if (!shown[i]) continue;
      const look = looks[i];
      if (look.r !== r || look.stamps !== stamps) {
        Object.assign(look, { r, stamps, stamp: stamp(look.shape, look.colour, r * look.size, look.isRing) });
      }
      put(i, look.stamp, most);
    }
  }
  finish();
  writeNames(sheetPen);
  paintedAt ??= performance.now();
}

// Few points, at fractions of pixels.
function stamping() {
  const put = (i, { image, half }, opacity) => {
    const [x, y] = [screenX(i), screenY(i)];
    if (x < -20 || y < -20 || x > view.width + 20 || y > view.height + 20) return;
    sheetPen.globalAlpha = opacity;
    sheetPen.drawImage(image, x - half, y - half, image.width / view.ratio, image.height / view.ratio);
  };
  return { put, finish: () => (sheetPen.globalAlpha = 1) };
}

// Many points are blended into the pixels here, which is many times faster without a graphics card.
function blending() {
  const { width, height } = sheet;
  const image = new ImageData(width, height);
  const pixels = image.data;
  const ground = [1, 3, 5].map((at) => parseInt(theme().background.slice(at, at + 2), 16));
  new Uint32Array(pixels.buffer).fill(new Uint32Array(Uint8Array.of(...ground, 255).buffer)[0]);
  const put = (i, stamped, opacity) => {
    stamped.dots ??= dotsOf(stamped.image);
    const left = Math.round((screenX(i) - stamped.half) * view.ratio);
    const top = Math.round((screenY(i) - stamped.half) * view.ratio);
    const side = stamped.image.width;
    if (left + side < 0 || top + side < 0 || left >= width || top >= height) return;
    const { xs, ys, colours, shares } = stamped.dots;
    for (let dot = 0; dot < shares.length; dot++) {
      const [x, y] = [left + xs[dot], top + ys[dot]];
      if (x < 0 || y < 0 || x >= width || y >= height) continue;
      const at = 4 * (y * width + x);
      const share = shares[dot] * opacity;
      pixels[at] += (colours[3 * dot] - pixels[at]) * share;
      pixels[at + 1] += (colours[3 * dot + 1] - pixels[at + 1]) * share;
      pixels[at + 2] += (colours[3 * dot + 2] - pixels[at + 2]) * share;
    }
  };
  return { put, finish: () => sheetPen.putImageData(image, 0, 0) };
}

// The pixels of a stamp that are not empty: position, colour and opacity.
function dotsOf(stamped) {
  const { data: pixels } = stamped.getContext("2d").getImageData(0, 0, stamped.width, stamped.height);
  const full = [...Array(stamped.width * stamped.height).keys()].filter((dot) => pixels[4 * dot + 3]);
  return {
    xs: Int16Array.from(full, (dot) => dot % stamped.width),
    ys: Int16Array.from(full, (dot) => Math.floor(dot / stamped.width)),
    colours: Uint8Array.from(full.flatMap((dot) => [pixels[4 * dot], pixels[4 * dot + 1], pixels[4 * dot + 2]])),
    shares: Float64Array.from(full, (dot) => pixels[4 * dot + 3] / 255),
  };
}
