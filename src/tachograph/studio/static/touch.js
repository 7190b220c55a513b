/** Fingers and wheels on a plot: two fingers zoom in x and y, one shows values, two taps show all of it again. */

const TAP = 350; // milliseconds between two taps
const STILL = 12; // pixels that a finger moves in a tap
const APART = 24; // pixels between two fingers from which on they zoom an axis

/** Have fingers act on a plot; the page still scrolls up and down with one. */
export function listen(plot) {
  const { over } = plot.u;
  const fingers = new Map();
  let begin = null;
  let tapped = 0;
  over.style.touchAction = "pan-y";
  const at = (event) => {
    const box = over.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  over.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return;
    fingers.set(event.pointerId, { ...at(event), from: at(event) });
    begin = fingers.size === 2 ? pinched(plot, [...fingers.values()]) : null;
    if (fingers.size === 1) plot.u.setCursor({ left: at(event).x, top: at(event).y }, true);
  });
  over.addEventListener("pointermove", (event) => {
    const finger = fingers.get(event.pointerId);
    if (!finger) return;
    Object.assign(finger, at(event));
    if (!begin) plot.u.setCursor({ left: finger.x, top: finger.y }, true);
  });
  const end = (event) => {
    const finger = fingers.get(event.pointerId);
    if (!finger) return;
    const both = [...fingers.values()];
    fingers.delete(event.pointerId);
    if (begin && both.length === 2 && event.type === "pointerup") zoom(plot, begin, both);
    const still = Math.hypot(finger.x - finger.from.x, finger.y - finger.from.y) < STILL;
    if (!begin && still && event.timeStamp - tapped < TAP) plot.on.reset();
    tapped = !begin && still ? event.timeStamp : 0;
    if (!fingers.size) begin = null;
  };
  for (const name of ["pointerup", "pointercancel"]) over.addEventListener(name, end);
  over.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // as a touchpad says that two fingers move apart
    event.preventDefault();
    plot.on.near(plot.u.posToVal(at(event).x, "x"), Math.exp(event.deltaY / 100));
  }, { passive: false });
}

/** Return what is under two fingers when they come down. */
function pinched({ u, axes }, fingers) {
  const values = (place, key) => fingers.map((finger) => u.posToVal(finger[place], key));
  const spread = (place) => Math.abs(fingers[0][place] - fingers[1][place]);
  return { x: spread("x") > APART ? values("x", "x") : null, y: spread("y") > APART ? Object.fromEntries(axes.y.map(({ key }) => [key, values("y", key)])) : null };
}

/** Have the same values be under two fingers where they are now. */
function zoom(plot, begin, fingers) {
  const { clientWidth: width, clientHeight: height } = plot.u.over;
  const line = (values, places, size, down) => {
    const [p, q] = places.map((each) => (down ? size - each : each));
    if (Math.abs(p - q) < APART) return null;
    const scale = (values[1] - values[0]) / (q - p);
    const low = values[0] - p * scale;
    return scale > 0 ? [low, low + size * scale] : null;
  };
  const x = begin.x && line(begin.x, fingers.map((finger) => finger.x), width, false);
  const pairs = begin.y && !plot.log ? Object.entries(begin.y).map(([key, values]) => [key, line(values, fingers.map((finger) => finger.y), height, true)]) : [];
  const y = Object.fromEntries(pairs.filter(([, pair]) => pair));
  if (x || Object.keys(y).length) plot.on.zoom(x, Object.keys(y).length ? y : null);
}
