/** Elements made from data: every text is a text node, so that no name can be markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return a new element.
 * @param {string} tag - its name; "svg:rect" makes one of SVG.
 * @param {Object} properties - attributes; `text`, `on` (listeners by event) and `style` (CSS properties) are special,
 *   and what is null, undefined or false is left out.
 * @param {...(Node|string|null)} children - what it holds.
 */
export function element(tag, properties = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (name === "style") for (const [key, each] of Object.entries(value)) made.style.setProperty(key, each);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

export const button = (text, press, more = {}, ...children) => element("button", { type: "button", class: "plain", text, on: { click: press }, ...more }, ...children);

/** Return a small button, as cards have them. */
export const small = (text, title, press, more = {}) => button(text, press, { class: "plain small", title: title || null, ...more });

/** Return a box that scrolls, by the keyboard, too. */
export const scrolling = (label, ...children) => element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, ...children);

/** Return the row of a table's heads: texts, or pairs of a text and its class. */
export const headRow = (heads) => element("tr", {}, ...heads.map((head) => [head].flat()).map(([text, kind]) => element("th", { scope: "col", class: kind, text })));

export const tabular = (head, body, kind = "data") => element("table", { class: kind }, element("thead", {}, head), body);

export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((each) => each !== null && each !== undefined));
  return parent;
}

/** Bring an element into view, at once for those who want no movement. */
export const bring = (node, block) => node.scrollIntoView({ block, behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });

/** Have an element hold these, in this order, and nothing else; what is in its place already is not moved. */
export function inOrder(parent, nodes) {
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
  while (parent.children.length > nodes.length) parent.lastChild.remove();
}

/** Set an element's text where it differs: nothing is laid out again without need. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
